// Products of many rows with a weight on Hopper: out[m, n] = f(sum over k of rows[m, k] * weight[n, k]), bf16 in, sums in f32.
//
// A block of three warpgroups takes a tile of 128 rows and COLUMNS outputs (or tiles in turn, if there are more than multiprocessors):
// two multiply 64 rows each, one thread of the third fetches. What is multiplied passes through a ring of STAGES steps of 64 inputs.
// Blocks of DOWN tiles of rows and ACROSS tiles of outputs are a cluster: those with the same rows fetch a share of them each and send
// it to one another, and so do those with the same outputs. If HALVES is 2, a cluster has two blocks of each tile, which take half of the
// inputs each and then exchange sums of 64 rows; there is a cluster for every tile then.
//
// Weights are fetched before the kernel before has ended (see early_triton.py), rows after. Tiles are numbered so that blocks that run
// at one time share weights. `product_cuda.py` puts `multiply` in front and fills Work.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

struct alignas(64) Map { char bytes[128]; };  // a CUtensorMap
struct Work {
    Map x, weight;    // boxes of 64 inputs of 128 / ACROSS rows, and of COLUMNS / DOWN of the weight's, of GATED COLUMNS / 2
    void* out;        // bf16 [rows, outs], of GATED [rows, outs / 2]
    const u32* bias;  // bf16 [outs], two in a word
    int rows, outs, ins;
};

enum { BIAS, GELU, GATED };
constexpr int ROWS = 128, STEP = 64, GROUPS = COLUMNS / 8, KEPT = KIND == GATED ? GROUPS / 2 : GROUPS;
constexpr int SHARE = DOWN * ACROSS, CLUSTER = SHARE * HALVES;  // blocks that work on the same inputs; blocks
constexpr u32 X_BYTES = ROWS * STEP * 2, W_BYTES = COLUMNS * STEP * 2;
static_assert(KIND != GATED || DOWN <= 2, "gates, and what they are multiplied with, are fetched by one block or two");

struct Tile { int row, column, begin, end; };  // first row, number of the tile of columns, steps of the inputs

struct Ring {
    u32 data, full, empty;
    __device__ u32 x(int stage) const { return data + stage * X_BYTES; }
    __device__ u32 weight(int stage) const { return data + STAGES * X_BYTES + stage * W_BYTES; }
};

// ------------------------------------------------------------------------------------------------------------- instructions

__device__ __forceinline__ u32 shared(const void* place) { return (u32)__cvta_generic_to_shared(place); }
__device__ __forceinline__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void prior_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync_memory() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 phase) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier, u32 block) {  // at the barrier of a block of the cluster; orders nothing but this ring
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}"
                 ::"r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void fetch(u32 to, const Map& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ __forceinline__ void fetch_for(u16 blocks, u32 to, const Map& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks) : "memory");
}
__device__ __forceinline__ u64 descriptor(u32 place) {  // rows of 128 bytes, swizzled, eight of them 1024 bytes apart
    return (u64)((place & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ __forceinline__ u32 packed(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ float low(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(u32 word) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ float gelu(float x) {  // by the tanh formula: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
    float power = x * (-2.302208198f - 0.1029432f * x * x), e;  // times log2(e)
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(power));
    return __fdividef(x, 1.0f + e);
}

// -------------------------------------------------------------------------------------------------------------------- parts

__device__ __forceinline__ int clusters_down(const Work& work) { return (work.rows + DOWN * ROWS - 1) / (DOWN * ROWS); }
__device__ __forceinline__ int clusters_across(const Work& work) { return (work.outs + ACROSS * COLUMNS - 1) / (ACROSS * COLUMNS); }
__device__ __forceinline__ int count(const Work& work) { return clusters_down(work) * clusters_across(work); }
__device__ __forceinline__ int my_down() { return rank() % DOWN; }
__device__ __forceinline__ int my_across() { return rank() / DOWN % ACROSS; }
__device__ __forceinline__ int my_half() { return rank() / SHARE; }

__device__ __forceinline__ Tile tile(const Work& work, int number) {  // of this block, of a number of the cluster's
    int down = number % clusters_down(work), across = number / clusters_down(work), steps = (work.ins + STEP - 1) / STEP;
    int begin = my_half() * steps / HALVES, end = (my_half() + 1) * steps / HALVES;
    return {(down * DOWN + my_down()) * ROWS, across * ACROSS + my_across(), begin, end};
}

// A block's share of its rows, for the blocks with the same rows.
__device__ __forceinline__ void fetch_rows(const Work& work, const Ring& ring, int stage, int step, int row) {
    u32 full = ring.full + 8 * stage;
    if (ACROSS == 1) return fetch(ring.x(stage), work.x, step * STEP, row, full);
    int me = my_across();
    u16 blocks = 0;
    for (int a = 0; a < ACROSS; ++a) blocks |= 1 << (my_half() * SHARE + a * DOWN + my_down());
    fetch_for(blocks, ring.x(stage) + me * (X_BYTES / ACROSS), work.x, step * STEP, row + me * (ROWS / ACROSS), full);
}

// A block's share of its tile of the weight, for the blocks with the same outputs. Of GATED the first half of a tile are gates, the
// second what they are multiplied with.
__device__ __forceinline__ void fetch_weight(const Work& work, const Ring& ring, int stage, int step, int column) {
    u32 full = ring.full + 8 * stage;
    int me = my_down();
    int row = KIND == GATED ? column * (COLUMNS / 2) + me * (work.outs / 2) : column * COLUMNS + me * (COLUMNS / DOWN);
    if (DOWN == 1) {
        fetch(ring.weight(stage), work.weight, step * STEP, row, full);
        if (KIND == GATED) fetch(ring.weight(stage) + W_BYTES / 2, work.weight, step * STEP, row + work.outs / 2, full);
        return;
    }
    u16 blocks = ((1 << DOWN) - 1) << (my_half() * SHARE + my_across() * DOWN);
    fetch_for(blocks, ring.weight(stage) + me * (W_BYTES / DOWN), work.weight, step * STEP, row, full);
}

// One thread: everything that the block multiplies, into the ring, as soon as all blocks that it sends to have done with what was there.
__device__ __forceinline__ void fetch_all(const Work& work, const Ring& ring) {
    bool waited = false;
    for (int number = blockIdx.x / CLUSTER, at = 0; number < count(work); number += gridDim.x / CLUSTER) {
        Tile t = tile(work, number);
        int before = min(t.end - t.begin, STAGES);
#pragma unroll 1
        for (int step = t.begin; step < t.end; ++step, ++at) {
            int stage = at % STAGES;
            wait(ring.empty + 8 * stage, (at / STAGES & 1) ^ 1);
            expect(ring.full + 8 * stage, X_BYTES + W_BYTES);
            fetch_weight(work, ring, stage, step, t.column);
            if (waited) {
                fetch_rows(work, ring, stage, step, t.row);
            } else if (at == before - 1) {
                prior_kernels();
                waited = true;
                for (int b = 0; b < before; ++b) fetch_rows(work, ring, b, t.begin + b, t.row);
            }
        }
    }
}

// One thread of each of CLUSTER: a stage is done with, for the blocks that send to this one.
__device__ __forceinline__ void release(const Ring& ring, int stage) {
    int other = threadIdx.x % 128;
    if (other >= SHARE || (other % DOWN != my_down() && other / DOWN != my_across())) return;
    arrive(ring.empty + 8 * stage, my_half() * SHARE + other);
}

__device__ __forceinline__ void hold(float (&c)[COLUMNS / 2]) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 2; ++n) asm volatile("" : "+f"(c[n])::"memory");
}

// A warpgroup: sums of 64 rows of a tile. Of eight columns, group g, a lane has 2 (lane % 4) and the next: of row lane / 4 of its warp's
// sixteen in c[4 g], c[4 g + 1], and of eight rows on in c[4 g + 2], c[4 g + 3].
__device__ __forceinline__ void multiply_all(float (&c)[COLUMNS / 2], const Ring& ring, const Tile& t, int group, int& at) {
    for (int step = t.begin; step < t.end; ++step, ++at) {
        int stage = at % STAGES;
        wait(ring.full + 8 * stage, at / STAGES & 1);
        u64 x = descriptor(ring.x(stage) + group * (X_BYTES / 2)), weight = descriptor(ring.weight(stage));
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) multiply(c, x + 2 * k, weight + 2 * k, step > t.begin || k > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (step > t.begin) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release(ring, (at - 1) % STAGES);
        }
    }
    hold(c);  // no sum is taken before
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(c);
    release(ring, (at - 1) % STAGES);
}

// Words of four groups, each of columns 2 t and the next, t = lane % 4, become the eight columns of group t.
__device__ __forceinline__ uint4 gathered(u32 a0, u32 a1, u32 a2, u32 a3, int t) {
    bool odd = t & 1, upper = t & 2;
    u32 r0 = __shfl_xor_sync(~0u, odd ? a0 : a1, 1), r1 = __shfl_xor_sync(~0u, odd ? a2 : a3, 1);
    if (odd) { a0 = r0; a2 = r1; } else { a1 = r0; a3 = r1; }
    r0 = __shfl_xor_sync(~0u, upper ? a0 : a2, 2), r1 = __shfl_xor_sync(~0u, upper ? a1 : a3, 2);
    return upper ? make_uint4(r0, r1, a2, a3) : make_uint4(a0, a1, r0, r1);
}

// The two blocks of a tile: each sends the sums of 64 rows to the other and adds what it gets to those that it keeps.
__device__ __forceinline__ void exchange(float (&c)[COLUMNS / 2], const Ring& ring, bool keeps) {
    const u32 place = ring.data + threadIdx.x % 128 * 16;  // what was multiplied is done with, in both blocks
    if (!keeps) {
        u32 there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank() ^ SHARE));
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                         ::"r"(there + g * 2048), "f"(c[4 * g]), "f"(c[4 * g + 1]), "f"(c[4 * g + 2]), "f"(c[4 * g + 3]) : "memory");
        }
    }
    cluster_sync_memory();
    if (keeps) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float4 more;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(more.x), "=f"(more.y), "=f"(more.z), "=f"(more.w) : "r"(place + g * 2048) : "memory");
            c[4 * g] += more.x, c[4 * g + 1] += more.y, c[4 * g + 2] += more.z, c[4 * g + 3] += more.w;
        }
    }
}

// Row `row` (of SECOND, `row` + 8 in the layout above) as bf16, after what KIND does to sums. `column`: the tile's first.
template <int SECOND>
__device__ __forceinline__ void keep_row(const float (&c)[COLUMNS / 2], const u32 (&bias)[KEPT], const Work& work, int column, int row) {
    int t = threadIdx.x % 4, width = KIND == GATED ? work.outs / 2 : work.outs;
    u32 words[KEPT];
#pragma unroll
    for (int g = 0; g < KEPT; ++g) {
        float one = c[4 * g + 2 * SECOND], two = c[4 * g + 2 * SECOND + 1];
        if (KIND != GATED) one += low(bias[g]), two += high(bias[g]);
        if (KIND == GELU) one = gelu(one), two = gelu(two);
        if (KIND == GATED) {
            constexpr int UPS = KIND == GATED ? 4 * KEPT : 0;
            one = gelu(one) * c[UPS + 4 * g + 2 * SECOND], two = gelu(two) * c[UPS + 4 * g + 2 * SECOND + 1];
        }
        words[g] = packed(one, two);
    }
    char* out = (char*)work.out + (u64)row * width * 2;
#pragma unroll
    for (int g = 0; g + 4 <= KEPT; g += 4) {
        uint4 eight = gathered(words[g], words[g + 1], words[g + 2], words[g + 3], t);
        int at = column + (g + t) * 8;
        if (row < work.rows && at < width) *(uint4*)(out + at * 2) = eight;
    }
#pragma unroll
    for (int g = KEPT / 4 * 4; g < KEPT; ++g) {
        int at = column + g * 8 + 2 * t;
        if (row < work.rows && at < width) *(u32*)(out + at * 2) = words[g];
    }
}

// The biases of a lane's columns.
__device__ __forceinline__ void load_bias(u32 (&bias)[KEPT], const Work& work, int column) {
#pragma unroll
    for (int g = 0; g < KEPT; ++g) {
        int at = column + g * 8 + threadIdx.x % 4 * 2;
        bias[g] = KIND != GATED && at < work.outs ? __ldg(work.bias + at / 2) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(CLUSTER, 1, 1) product(const __grid_constant__ Work work) {
    extern __shared__ char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    const Ring ring = {(shared(memory) + 1023) & ~1023u, shared(barriers), shared(barriers + STAGES)};
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init(ring.full + 8 * stage, 1);
            init(ring.empty + 8 * stage, 2 * (DOWN + ACROSS - 1));  // two warpgroups of each block that this one sends to
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    asm volatile("griddepcontrol.launch_dependents;");
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) fetch_all(work, ring);
        __syncwarp();
        if (HALVES == 2) {  // the others exchange sums
            cluster_sync();
            cluster_sync_memory();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        prior_kernels();
        int at = 0;
        for (int number = blockIdx.x / CLUSTER; number < count(work); number += gridDim.x / CLUSTER) {
            Tile t = tile(work, number);
            float c[COLUMNS / 2];
            u32 bias[KEPT];
            load_bias(bias, work, t.column * KEPT * 8);
            multiply_all(c, ring, t, group, at);
            int row = t.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
            bool keeps = HALVES == 1 || group == my_half();
            if (HALVES == 2) {
                cluster_sync();
                exchange(c, ring, keeps);
            }
            if (keeps) {
                keep_row<0>(c, bias, work, t.column * KEPT * 8, row);
                keep_row<1>(c, bias, work, t.column * KEPT * 8, row + 8);
            }
        }
    }
    cluster_sync();  // no block ends while others may still send to it
}
