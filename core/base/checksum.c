/*
 * checksum.c: CRC32C (Castagnoli, reflected) and SHA-256 (FIPS 180-4), the two sums a blob is vouched for with.
 */
#include "base/base.h"
#include "base/sum_tables.h"

static const uint32_t colibri_crc_table[4][256] = COLIBRI_CRC32C_TABLES;

uint32_t colibri_crc32c(uint32_t crc, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    uint32_t c = ~crc;
    while (bytes >= 4u) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = colibri_crc_table[3][c & 255u] ^ colibri_crc_table[2][(c >> 8) & 255u] ^
            colibri_crc_table[1][(c >> 16) & 255u] ^ colibri_crc_table[0][c >> 24];
        p += 4;
        bytes -= 4u;
    }
    for (; bytes != 0u; bytes--, p++) {
        c = colibri_crc_table[0][(c ^ *p) & 255u] ^ (c >> 8);
    }
    return ~c;
}

/* Polynomials mod the CRC's; the highest bit is the coefficient of 1, as in every sum here. */
uint32_t colibri_crc_times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t i = 0; i < 32u; i++) {
        product ^= b & (0u - (a >> 31));
        b = b >> 1 ^ (0x82F63B78u & (0u - (b & 1u)));
        a <<= 1;
    }
    return product;
}

uint32_t colibri_crc_power(uint64_t bytes)
{
    uint32_t power = 0x80000000u, square = 0x00800000u;         /* 1 and x^8 */
    for (; bytes != 0u; bytes >>= 1) {
        power = (bytes & 1u) ? colibri_crc_times(power, square) : power;
        square = colibri_crc_times(square, square);
    }
    return power;
}

static const uint32_t colibri_sha_k[64] = COLIBRI_SHA256_CONSTANTS;

static uint32_t colibri_rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void colibri_sha_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               (uint32_t)p[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15];
        uint32_t b = w[i - 2];
        w[i] = w[i - 16] + (colibri_rotate(a, 7) ^ colibri_rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (colibri_rotate(b, 17) ^ colibri_rotate(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    for (int i = 0; i < 8; i++) {
        s[i] = state[i];
    }
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4];
        uint32_t a = s[0];
        uint32_t t1 = s[7] + (colibri_rotate(e, 6) ^ colibri_rotate(e, 11) ^ colibri_rotate(e, 25)) +
                      ((e & s[5]) ^ (~e & s[6])) + colibri_sha_k[i] + w[i];
        uint32_t t2 = (colibri_rotate(a, 2) ^ colibri_rotate(a, 13) ^ colibri_rotate(a, 22)) +
                      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        s[7] = s[6];
        s[6] = s[5];
        s[5] = s[4];
        s[4] = s[3] + t1;
        s[3] = s[2];
        s[2] = s[1];
        s[1] = s[0];
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += s[i];
    }
}

void colibri_sha256_start(colibri_sha256 *hash)
{
    static const uint32_t first[8] = COLIBRI_SHA256_FIRST;
    for (int i = 0; i < 8; i++) {
        hash->state[i] = first[i];
    }
    hash->bytes = 0;
}

void colibri_sha256_add(colibri_sha256 *hash, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    uint32_t held = (uint32_t)(hash->bytes & 63u);
    hash->bytes += bytes;
    while (bytes != 0u) {
        if (held == 0u && bytes >= 64u) {
            colibri_sha_block(hash->state, p);
            p += 64;
            bytes -= 64u;
            continue;
        }
        uint32_t room = 64u - held;
        uint32_t n = bytes < room ? (uint32_t)bytes : room;
        colibri_copy(hash->block + held, p, n);
        p += n;
        bytes -= n;
        held += n;
        if (held == 64u) {
            colibri_sha_block(hash->state, hash->block);
            held = 0;
        }
    }
}

void colibri_sha256_end(colibri_sha256 *hash, uint8_t digest[32])
{
    uint64_t bits = hash->bytes * 8u;
    uint8_t tail[72];
    uint32_t held = (uint32_t)(hash->bytes & 63u);
    uint32_t pad = held < 56u ? 56u - held : 120u - held;
    colibri_fill(tail, 0, sizeof tail);
    tail[0] = 0x80;
    for (int i = 0; i < 8; i++) {
        tail[pad + (uint32_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    colibri_sha256_add(hash, tail, pad + 8u);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 4; k++) {
            digest[4 * i + k] = (uint8_t)(hash->state[i] >> (24 - 8 * k));
        }
    }
}
