// Padding by a mode, columns of windows, and the transposes of both. One thread makes one cell of a result (N, C, *sizes)
// with three spatial axes. windows.py gives the types: scalar, that of the arrays; total, that of sums; place, a signed
// integer that counts every cell.

struct Plan {
    place cells;      // of the result
    place channels;
    place sizes[3];   // of the result
    place stride[5];  // elements between neighbours of the source
    // Then, axis after axis, what each kernel reads.
};

struct Cell {
    place plane, at[3];  // where the cell's plane begins in the source; the cell

    __device__ Cell(const Plan &plan, place cell)
    {
        for (int axis = 2; axis >= 0; --axis) {
            at[axis] = cell % plan.sizes[axis];
            cell /= plan.sizes[axis];
        }
        plane = cell / plan.channels * plan.stride[0] + cell % plan.channels * plan.stride[1];
    }
};

#define ONE_CELL                                                          \
    const Plan &plan = *(const Plan *)integers;                           \
    place number = place(blockIdx.x) * place(blockDim.x) + threadIdx.x;   \
    if (number >= plan.cells) return;                                     \
    Cell cell(plan, number);                                              \
    const place *table = (const place *)(&plan + 1)

// Each axis has the cell of x that every cell of the result shows, -1 for a constant, whose bits are low and high.
extern "C" __global__ void gather(const place *integers, const scalar *x, scalar *y, long long low, long long high)
{
    ONE_CELL;
    union { long long bits[2]; scalar value; } constant = {{low, high}};
    place source = cell.plane;
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
        place at = table[cell.at[axis]];
        inside &= at >= 0;
        source += at * plan.stride[2 + axis];
        table += plan.sizes[axis];
    }
    y[number] = inside ? x[source] : constant.value;
}

#if SUMS

// Each axis has a list of cells of grad for every cell of the result: where the lists begin and end, then the lists.
extern "C" __global__ void gather_transpose(const place *integers, const scalar *grad, scalar *result)
{
    ONE_CELL;
    const place *first[3], *last[3];
    for (int axis = 0; axis < 3; ++axis) {
        const place *ends = table, *list = table + plan.sizes[axis] + 1;
        first[axis] = list + ends[cell.at[axis]];
        last[axis] = list + ends[cell.at[axis] + 1];
        table = list + ends[plan.sizes[axis]];
    }
    total sum = total();
    for (const place *i = first[0]; i < last[0]; ++i)
        for (const place *j = first[1]; j < last[1]; ++j)
            for (const place *k = first[2]; k < last[2]; ++k)
                sum += total(grad[cell.plane + *i * plan.stride[2] + *j * plan.stride[3] + *k * plan.stride[4]]);
    result[number] = scalar(sum);
}

#endif
