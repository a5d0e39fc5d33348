// Pools and their gradients. One thread makes one cell of a result (N, C, *sizes) with three spatial axes.
//
// Every cell of a result reads a box of a source: along each axis `count` cells from `first`, `step` apart. A pool reads
// the windows of its input so, and its gradient the windows that cover an input cell. windows.py gives the types
// (scalar, of the arrays; total, of a window's sum; plane_sum, of a plane's; place, that counts cells), LOWEST and FLOATING.

struct Plan {
    place cells;      // of the result
    place channels;
    place sizes[3];   // of the result
    place source[3];  // sizes of the source
    place step[3];
    place stride[5];  // elements between neighbours of the source
    // Then, axis after axis: (first, count) of every cell of the result, and the divisors of every window.

    __device__ const place *box(int axis, place at) const
    {
        const place *table = (const place *)(this + 1);
        for (int before = 0; before < axis; ++before) table += 2 * sizes[before];
        return table + 2 * at;
    }

    __device__ const place *divisors() const { return box(2, sizes[2]); }
};

struct Cell {
    place batch, channel, at[3];

    __device__ Cell(const Plan &plan, place cell)
    {
        for (int axis = 2; axis >= 0; --axis) {
            at[axis] = cell % plan.sizes[axis];
            cell /= plan.sizes[axis];
        }
        channel = cell % plan.channels;
        batch = cell / plan.channels;
    }
};

// Call `see(offset, i, j, k)` for every cell of the source that a cell of the result reads, in ascending order.
template <class See> __device__ void read(const Plan &plan, const Cell &cell, See see)
{
    const place *depth = plan.box(0, cell.at[0]), *height = plan.box(1, cell.at[1]), *width = plan.box(2, cell.at[2]);
    place plane = cell.batch * plan.stride[0] + cell.channel * plan.stride[1];
    for (place a = 0, i = depth[0]; a < depth[1]; ++a, i += plan.step[0])
        for (place b = 0, j = height[0]; b < height[1]; ++b, j += plan.step[1]) {
            place row = plane + i * plan.stride[2] + j * plan.stride[3];
            for (place c = 0, k = width[0]; c < width[1]; ++c, k += plan.step[2])
                see(row + k * plan.stride[4], i, j, k);
        }
}

#define ONE_CELL                                                          \
    const Plan &plan = *(const Plan *)integers;                           \
    place number = place(blockIdx.x) * place(blockDim.x) + threadIdx.x;   \
    if (number >= plan.cells) return;                                     \
    Cell cell(plan, number)

// The first cell of the greatest value, the last NaN; LOWEST and -1 where a window holds no cell.
extern "C" __global__ void max_pool(const place *integers, const scalar *x, scalar *y, long long *index)
{
    ONE_CELL;
    total best = total(LOWEST);
    long long where = -1;
    read(plan, cell, [&](place at, place i, place j, place k) {
        total value = total(x[at]);
        if (where < 0 || value > best || value != value) {
            best = value;
            where = ((long long)i * plan.source[1] + j) * plan.source[2] + k;
        }
    });
    y[number] = scalar(best);
    if (index) index[number] = where;
}

// Add every gradient to the cell that won, `cells` of them per plane; `sums` begin as zeros.
extern "C" __global__ void max_pool_transpose(
    const long long *index, const scalar *grad, plane_sum *sums, long long windows, long long windows_of_plane, long long cells)
{
    long long number = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= windows || index[number] < 0) return;
    atomicAdd(sums + number / windows_of_plane * cells + index[number], plane_sum(total(grad[number])));
}

#if FLOATING

// What the sum of the window (i, j, k) is divided by; `sizes` are the numbers of windows.
__device__ total divisor_of(const Plan &plan, const place *sizes, place i, place j, place k)
{
    const place *counts = plan.divisors();
    return total(counts[i]) * total(counts[sizes[0] + j]) * total(counts[sizes[0] + sizes[1] + k]);
}

extern "C" __global__ void avg_pool(const place *integers, const scalar *x, scalar *y)
{
    ONE_CELL;
    total sum = 0;
    read(plan, cell, [&](place at, place, place, place) { sum += total(x[at]); });
    y[number] = scalar(sum / divisor_of(plan, plan.sizes, cell.at[0], cell.at[1], cell.at[2]));
}

extern "C" __global__ void avg_pool_transpose(const place *integers, const scalar *grad, scalar *result)
{
    ONE_CELL;
    total sum = 0;
    read(plan, cell, [&](place at, place i, place j, place k) {
        sum += total(grad[at]) / divisor_of(plan, plan.source, i, j, k);
    });
    result[number] = scalar(sum);
}

__device__ total sum_of_powers(const Plan &plan, const Cell &cell, const scalar *x, total power)
{
    total sum = 0;
    read(plan, cell, [&](place at, place, place, place) { sum += pow(total(fabs(total(x[at]))), power); });
    return sum;
}

extern "C" __global__ void lp_pool(const place *integers, const scalar *x, scalar *y, double power)
{
    ONE_CELL;
    y[number] = scalar(pow(sum_of_powers(plan, cell, x, total(power)), total(1 / power)));
}

// What every window sends to its cells, before their own factor: grad * y^(1 - p); nothing where it is all zero.
extern "C" __global__ void lp_pool_shares(
    const place *integers, const scalar *x, const scalar *grad, total *shares, double power)
{
    ONE_CELL;
    total sum = sum_of_powers(plan, cell, x, total(power));
    shares[number] = sum == 0 ? total(0) : total(grad[number]) * pow(sum, total(1 / power - 1));
}

extern "C" __global__ void lp_pool_gradient(
    const place *integers, const total *shares, const scalar *x, scalar *result, double power)
{
    ONE_CELL;
    total sum = 0, value = total(x[number]);
    read(plan, cell, [&](place at, place, place, place) { sum += shares[at]; });
    result[number] = scalar(value == 0 ? total(0) : sum * copysign(pow(total(fabs(value)), total(power - 1)), value));
}

#endif
