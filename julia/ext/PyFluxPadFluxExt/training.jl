# Steps of training: a rule of Optimisers.jl, a loss, and the states to go back to.

mutable struct Trainer
    const model::Model
    tree::Any
    """The arrays before this step and before the one that preceded it."""
    saved::Vector{Vector{Array}}
end

function Trainer(model::Model, rule)
    any(p -> p.trained, model.parameters) || refuse("shape", "the model has no parameters that are trained")
    return Trainer(model, Optimisers.setup(rule, model.object), Vector{Array}[])
end

"""Return a rule from code, such as `Adam(1f-3)`; the name of a rule stands for its defaults."""
function rule_of(code)
    rule = evaluate(code, "optimiser")
    rule isa Type && (rule = rule())
    rule isa Optimisers.AbstractRule && return rule
    refuse("code", "optimiser: $code is $(summary(rule)), not a rule of Optimisers.jl")
end

"""Keep the arrays as they are at the start of a step."""
function save!(trainer::Trainer)
    arrays = [p.array for p in trainer.model.parameters]
    if length(trainer.saved) < 2
        pushfirst!(trainer.saved, map(copy, arrays))
    else
        reverse!(trainer.saved)
        foreach(copyto!, first(trainer.saved), arrays)
    end
    return nothing
end

"""Go back to the start of the step before this one, the last state whose loss was finite; at the first, to its start."""
function restore!(trainer::Trainer)
    foreach((p, kept) -> copyto!(p.array, kept), trainer.model.parameters, last(trainer.saved))
    return nothing
end

const LOSSES = Dict(
    "mse" => Flux.Losses.mse,
    "crossentropy" => Flux.Losses.crossentropy,
    "logitcrossentropy" => Flux.Losses.logitcrossentropy,
)

loss_of(code) = get(() -> evaluate(code, "loss"), LOSSES, code)

"""Return the loss; where it is finite, the parameters have made a step."""
function step!(trainer::Trainer, loss, xs, target)
    model = trainer.model
    y, back = differentiate(model.object, xs, false)
    if loss in values(LOSSES) && size(y) != size(target)
        refuse("shape", "the loss compares arrays of one shape; the prediction is ", shape_text(y),
            ", the target ", shape_text(target))
    end
    value, back_loss = Zygote.pullback(loss, y, target)
    value isa Real || refuse("type", "the loss returned $(summary(value)); it must return a number")
    if isfinite(value)
        update!(trainer, first(back(first(back_loss(one(value))))))
    end
    return Float64(value)
end

function update!(trainer::Trainer, cotangent)
    cotangent === nothing && return nothing
    trainer.tree, _ = Optimisers.update!(trainer.tree, trainer.model.object, cotangent)
    check_unchanged(trainer.model)
    return nothing
end
