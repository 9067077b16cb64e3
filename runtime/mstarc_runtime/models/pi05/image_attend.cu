// Attention of the tokens of an image on Hopper, which all see each other: a warpgroup takes 64 queries of a head over all TOKENS keys.
//
// A head has DIM dims, of which the copy engine brings the first 64 and the last 16, of those zeros beyond DIM. So queries, keys and
// values are two blocks each in shared memory: rows of 128 bytes and rows of 32 bytes, swizzled. The blocks of a head are a cluster, in which
// each fetches 64 keys and values for all. Scores of 64 queries with every key are in registers, so the softmax is one pass. Two blocks
// share a multiprocessor.
//
// `image_attend.py` puts three products in front (`scores`, `mix` and `mix_rest`) and fills Work.

typedef unsigned long long u64;
typedef unsigned int u32;

struct alignas(64) Map { char bytes[128]; };  // a CUtensorMap
struct Work {
    Map main, rest;  // boxes of 64 rows of a head's first 64 dims, and of 16 more: bf16 [rows, 3 * heads, DIM], queries, keys, values
    char* out;       // bf16 [rows, heads, DIM]
    int heads;
    float scale;     // times log2(e)
};

constexpr int QUERIES = 64, BLOCKS = TOKENS / 64, TAIL = DIM - 64;
constexpr u32 MAIN = 64 * 128, REST = 64 * 32;  // bytes of 64 rows
constexpr u32 KEYS = 0, VALUES = BLOCKS * MAIN, ASKING = 2 * BLOCKS * MAIN;
constexpr u32 KEYS_REST = ASKING + MAIN, VALUES_REST = KEYS_REST + BLOCKS * REST, ASKING_REST = VALUES_REST + BLOCKS * REST;

__device__ __forceinline__ u32 shared(const void* place) { return (u32)__cvta_generic_to_shared(place); }
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void fetch_for_all(u32 to, const Map& map, int head, int row, int dim, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(&map), "r"(dim), "r"(head), "r"(row), "r"(barrier), "h"((unsigned short)((1 << BLOCKS) - 1)) : "memory");
}
__device__ __forceinline__ void fetch(u32 to, const Map& map, int head, int row, int dim, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(dim), "r"(head), "r"(row), "r"(barrier) : "memory");
}
// Rows of 128 bytes, or of 32 if narrow, eight of them a pattern.
__device__ __forceinline__ u64 descriptor(u32 place, bool narrow) {
    return (u64)((place & 0x3ffff) >> 4) | ((u64)(narrow ? 16 : 64) << 16) | ((u64)(narrow ? 16 : 64) << 32) | ((narrow ? 3ull : 1ull) << 62);
}
__device__ __forceinline__ u32 packed(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ float exp2(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
template <int N> __device__ __forceinline__ void hold(float (&c)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) asm volatile("" : "+f"(c[n])::"memory");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// One thread: its block's share of everything, behind two barriers, of queries and keys and of values.
__device__ __forceinline__ void fetch_share(const Work& work, u32 data, u32 keys_there, u32 values_there, int head, int block, int row) {
    expect(keys_there, (BLOCKS + 1) * (MAIN + REST));
    expect(values_there, BLOCKS * (MAIN + REST));
    fetch(data + ASKING, work.main, head, row, 0, keys_there);
    fetch(data + ASKING_REST, work.rest, head, row, 64, keys_there);
    fetch_for_all(data + KEYS + block * MAIN, work.main, work.heads + head, row, 0, keys_there);
    fetch_for_all(data + KEYS_REST + block * REST, work.rest, work.heads + head, row, 64, keys_there);
    fetch_for_all(data + VALUES + block * MAIN, work.main, 2 * work.heads + head, row, 0, values_there);
    fetch_for_all(data + VALUES_REST + block * REST, work.rest, 2 * work.heads + head, row, 64, values_there);
}

// Scores become shares of the largest of their row; gives the sums of rows lane / 4 and lane / 4 + 8 of the warp's sixteen.
__device__ __forceinline__ float2 softmax(float (&s)[TOKENS / 2], float scale) {
    float2 top = {s[0], s[2]}, total = {0, 0};
#pragma unroll
    for (int n = 0; n < TOKENS / 2; n += 4) {
        top.x = fmaxf(top.x, fmaxf(s[n], s[n + 1]));
        top.y = fmaxf(top.y, fmaxf(s[n + 2], s[n + 3]));
    }
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        top.x = fmaxf(top.x, __shfl_xor_sync(~0u, top.x, apart));
        top.y = fmaxf(top.y, __shfl_xor_sync(~0u, top.y, apart));
    }
    top.x *= scale, top.y *= scale;
#pragma unroll
    for (int n = 0; n < TOKENS / 2; n += 4) {
        s[n] = exp2(s[n] * scale - top.x), s[n + 1] = exp2(s[n + 1] * scale - top.x);
        s[n + 2] = exp2(s[n + 2] * scale - top.y), s[n + 3] = exp2(s[n + 3] * scale - top.y);
        total.x += s[n] + s[n + 1], total.y += s[n + 2] + s[n + 3];
    }
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        total.x += __shfl_xor_sync(~0u, total.x, apart);
        total.y += __shfl_xor_sync(~0u, total.y, apart);
    }
    return total;
}

extern "C" __global__ void __launch_bounds__(128, 2) __cluster_dims__(BLOCKS, 1, 1) attend(const __grid_constant__ Work work) {
    extern __shared__ char memory[];
    __shared__ alignas(8) u64 barriers[2];
    const u32 data = (shared(memory) + 1023) & ~1023u, keys_there = shared(barriers), values_there = shared(barriers + 1);
    const int block = blockIdx.x % BLOCKS, head = blockIdx.x / BLOCKS % work.heads;
    const int first = blockIdx.x / BLOCKS / work.heads * TOKENS, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (u32 barrier : {keys_there, values_there}) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
    if (threadIdx.x == 0) fetch_share(work, data, keys_there, values_there, head, block, first + block * QUERIES);
    __syncwarp();

    float s[TOKENS / 2];
    wait(keys_there);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        scores(s, descriptor(data + ASKING, false) + 2 * k, descriptor(data + KEYS, false) + 2 * k, k > 0);
    }
    scores(s, descriptor(data + ASKING_REST, true), descriptor(data + KEYS_REST, true), 1);
    hold(s);
    end_products();
    hold(s);
    float2 total = softmax(s, work.scale);

    u32 shares[TOKENS / 16][4];
#pragma unroll
    for (int k = 0; k < TOKENS / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) shares[k][n] = packed(s[8 * k + 2 * n], s[8 * k + 2 * n + 1]);
    }
    float main[32], rest[8];
    wait(values_there);
    begin_products();
#pragma unroll
    for (int k = 0; k < TOKENS / 16; ++k) {
        mix(main, shares[k], descriptor(data + VALUES + k * (MAIN / 4), false), k > 0);
        mix_rest(rest, shares[k], descriptor(data + VALUES_REST + k * (REST / 4), true), k > 0);
    }
    hold(main), hold(rest);
    end_products();
    hold(main), hold(rest);

    int row = first + block * QUERIES + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float share = 1.0f / (h ? total.y : total.x);
        char* to = work.out + ((u64)(row + 8 * h) * work.heads + head) * (DIM * 2) + lane % 4 * 4;
#pragma unroll
        for (int g = 0; g < 8; ++g) *(u32*)(to + g * 16) = packed(main[4 * g + 2 * h] * share, main[4 * g + 2 * h + 1] * share);
#pragma unroll
        for (int g = 0; g < TAIL / 8; ++g) *(u32*)(to + 128 + g * 16) = packed(rest[4 * g + 2 * h] * share, rest[4 * g + 2 * h + 1] * share);
    }
    cluster_sync();  // no block ends while others may still send to it
}
