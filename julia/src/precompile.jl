# Every entry point once per element type, so that a process compiles nothing at its first convolution.

@setup_workload begin
    conv = Int64[0, 1, 2, 2, 1, 1, 3, 4, 1, 2, 2, 1, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    planes = Int64[0, 2, 1, 3, 4, 1, 3, 4, 1, 1, 1]
    places, counts = Int64[0, 0, 1, 2, 0, 1, 2, 3], ones(Int64, 8)
    @compile_workload begin
        entry_points()
        facts()
        for (code, T) in enumerate(TYPES)
            x, y, w, one = zeros(T, 24), zeros(T, 24), zeros(T, 16), zeros(T, 1)
            index, spots = zeros(Int64, 24), [places; counts]
            conv[1] = planes[1] = code
            GC.@preserve conv planes places counts x y w one index spots begin
                cp, pp = pointer(conv), pointer(planes)
                at(a) = Ptr{Cvoid}(pointer(a))
                entry_conv(cp, at(y), at(x), at(w))
                entry_conv_input(cp, at(x), at(y), at(w))
                entry_conv_weight(cp, at(w), at(x), at(y))
                entry_pad(pp, at(y), at(x), at(places), at(one))
                entry_pad_transpose(pp, at(x), at(y), at(places))
                entry_pool_sum(pp, at(y), at(x), at(spots))
                entry_pool_sum_transpose(pp, at(x), at(y), at(spots))
                T <: Real && entry_max_pool(pp, at(y), at(index), at(x), at(spots))
                T <: Real && entry_max_pool_transpose(pp, at(x), at(index), at(y))
            end
        end
    end
end
