/*
 * levels_sums.h: the part of levels_test.c about checksums: every length around the places where their loops change,
 * every alignment, begun anew and continued.
 */
#ifndef LEVELS_SUMS_H
#define LEVELS_SUMS_H

static uint8_t summed[40000];

static uint32_t test_crc(uint32_t kernel, uint32_t from, uint32_t bytes)
{
    uint32_t before = draw();
    levels_result[7]++;
    return colibri_crc(kernel, before, summed + from, bytes) != colibri_crc32c(before, summed + from, bytes)
               ? fails(CRC, from, bytes, before, 0, 0) : 0u;
}

static uint32_t all_crcs(uint32_t kernel)
{
    for (uint32_t i = 0; i < sizeof summed; i++) {
        summed[i] = (uint8_t)draw();
    }
    for (uint32_t bytes = 0; bytes < 300u; bytes++) {
        if (test_crc(kernel, bytes % 13u, bytes) || test_crc(kernel, below(64), 6144u - 150u + bytes) ||
            test_crc(kernel, below(64), below(sizeof summed - 64u))) {
            return 1;
        }
    }
    return 0;
}

#endif
