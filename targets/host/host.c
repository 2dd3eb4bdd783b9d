/*
 * host.c: kernel levels of this processor. x86-64: CPUID says what the processor has, XGETBV which registers the
 * system saves. ARM64: host_port.h says it. WebAssembly: an engine that could not run the module would not have loaded
 * it, so whatever is compiled in is there.
 */
#include "host.h"

#include "host_port.h"

#define LEVEL(name) (1u << COLIBRI_KERNEL_##name)

#if defined(__x86_64__)

typedef struct cpuid_result {
    uint32_t a, b, c, d;
} cpuid_result;

static cpuid_result cpuid(uint32_t leaf, uint32_t subleaf)
{
    cpuid_result r;
    __asm__ volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(subleaf));
    return r;
}

/* XCR0: bit 1 SSE, 2 upper halves of YMM, 5 mask registers, 6 upper halves of ZMM0-15, 7 ZMM16-31. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static uint32_t all_of(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

uint32_t colibri_host_kernels(void)
{
    const uint32_t osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;             /* leaf 1, ECX */
    const uint32_t avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;   /* leaf 7, EBX */
    const uint32_t vnni = 1u << 11;                                                 /* leaf 7, ECX */
    const uint32_t avx_vnni = 1u << 4;                                              /* leaf 7.1, EAX */
    uint32_t levels = LEVEL(PORTABLE);
    if (cpuid(0, 0).a < 7u || !all_of(cpuid(1, 0).c, osxsave | avx | f16c)) {
        return levels;
    }
    uint32_t saved = saved_registers();
    cpuid_result seven = cpuid(7, 0);
    if (!all_of(saved, 0x06u) || !all_of(seven.b, avx2)) {
        return levels;
    }
    levels |= LEVEL(AVX2);
    if (seven.a >= 1u && all_of(cpuid(7, 1).a, avx_vnni)) {
        levels |= LEVEL(AVX_VNNI);
    }
    if (all_of(saved, 0xE6u) && all_of(seven.b, f | dq | bw | vl) && all_of(seven.c, vnni)) {
        levels |= LEVEL(AVX512);
    }
    return levels;
}

#elif defined(__aarch64__)

uint32_t colibri_host_kernels(void)
{
    uint32_t vectors = colibri_host_vectors();
    return LEVEL(PORTABLE) | (vectors >= COLIBRI_HOST_NEON ? LEVEL(NEON) : 0u)
           | (vectors >= COLIBRI_HOST_DOTPROD ? LEVEL(DOTPROD) : 0u);
}

#elif defined(__wasm__)

uint32_t colibri_host_kernels(void)
{
    return LEVEL(PORTABLE) | LEVEL(SIMD128) | LEVEL(RELAXED);
}

#else

uint32_t colibri_host_kernels(void)
{
    return LEVEL(PORTABLE);
}

#endif

/* Within an architecture the better level has the larger number. */
uint32_t colibri_host_kernel(uint32_t available)
{
    uint32_t both = available & colibri_host_kernels();
    uint32_t level = COLIBRI_KERNEL_RELAXED;
    while (level > COLIBRI_KERNEL_PORTABLE && (both >> level & 1u) == 0u) {
        level--;
    }
    return level;
}
