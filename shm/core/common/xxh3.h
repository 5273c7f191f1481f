/* xxh3.h - the 64-bit XXH3 hash without a seed, as the specification of xxHash 0.8 defines it, of at least 17 bytes in
 * two pieces: a key and what belongs to it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PT_XXH3_LEAST = 17, PT_XXH3_MID = 240, PT_XXH3_STRIPE = 64, PT_XXH3_SECRET = 192, PT_XXH3_LANES = 8 };
#define PT_XXH3_BLOCK ((PT_XXH3_SECRET - PT_XXH3_STRIPE) / 8) /* stripes */

#define PT_PRIME32_1 0x9e3779b1ull
#define PT_PRIME32_2 0x85ebca77ull
#define PT_PRIME32_3 0xc2b2ae3dull
#define PT_PRIME64_1 0x9e3779b185ebca87ull
#define PT_PRIME64_2 0xc2b2ae3d27d4eb4full
#define PT_PRIME64_3 0x165667b19e3779f9ull
#define PT_PRIME64_4 0x85ebca77c2b2ae63ull
#define PT_PRIME64_5 0x27d4eb2f165667c5ull

static const uint8_t pt_xxh3_secret[PT_XXH3_SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Bytes in two pieces, the second one right after the first one. */
typedef struct {
    const uint8_t *first, *second;
    size_t first_bytes, second_bytes;
} pt_hashed;

/* Copies a range, which the caller guarantees to be there. */
static inline void pt_hashed_copy(const pt_hashed *in, size_t at, uint8_t *out, size_t bytes)
{
    size_t of_first = at < in->first_bytes ? in->first_bytes - at : 0;
    of_first = of_first < bytes ? of_first : bytes;
    if (of_first)
        memcpy(out, in->first + at, of_first);
    if (bytes > of_first)
        memcpy(out + of_first, in->second + (at + of_first - in->first_bytes), bytes - of_first);
}

static inline uint64_t pt_xxh3_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline uint64_t pt_xxh3_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Mixes 16 bytes with those of the secret at an offset. */
static inline uint64_t pt_xxh3_mix(const uint8_t *in, size_t secret)
{
    const uint8_t *with = pt_xxh3_secret + secret;
    return pt_xxh3_fold(pt_xxh3_word(in) ^ pt_xxh3_word(with), pt_xxh3_word(in + 8) ^ pt_xxh3_word(with + 8));
}

static inline uint64_t pt_xxh3_avalanche(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * 0x165667919e3779f9ull;
    return hash ^ hash >> 32;
}

/* Hashes 17 to 128 bytes: pairs of 16 bytes from both ends. */
static inline uint64_t pt_xxh3_short(const uint8_t *in, size_t bytes)
{
    uint64_t hash = bytes * PT_PRIME64_1;
    for (size_t pair = 0; pair <= (bytes - 1) / 32; pair++)
        hash += pt_xxh3_mix(in + 16 * pair, 32 * pair) + pt_xxh3_mix(in + bytes - 16 * (pair + 1), 32 * pair + 16);
    return pt_xxh3_avalanche(hash);
}

/* Hashes 129 to 240 bytes. */
static inline uint64_t pt_xxh3_mid(const uint8_t *in, size_t bytes)
{
    uint64_t hash = bytes * PT_PRIME64_1;
    for (size_t i = 0; i < 8; i++)
        hash += pt_xxh3_mix(in + 16 * i, 16 * i);
    hash = pt_xxh3_avalanche(hash);
    for (size_t i = 8; i < bytes / 16; i++)
        hash += pt_xxh3_mix(in + 16 * i, 16 * (i - 8) + 3);
    return pt_xxh3_avalanche(hash + pt_xxh3_mix(in + bytes - 16, 136 - 17));
}

/* Adds the stripe at an offset of the input, with the secret at an offset. */
static inline void pt_xxh3_stripe(uint64_t *lanes, const pt_hashed *in, size_t at, size_t secret)
{
    uint8_t stripe[PT_XXH3_STRIPE];
    pt_hashed_copy(in, at, stripe, sizeof stripe);
    for (size_t i = 0; i < PT_XXH3_LANES; i++) {
        uint64_t word = pt_xxh3_word(stripe + 8 * i), keyed = word ^ pt_xxh3_word(pt_xxh3_secret + secret + 8 * i);
        lanes[i ^ 1] += word;
        lanes[i] += (uint32_t)keyed * (keyed >> 32);
    }
}

static inline void pt_xxh3_scramble(uint64_t *lanes)
{
    for (size_t i = 0; i < PT_XXH3_LANES; i++) {
        uint64_t with = pt_xxh3_word(pt_xxh3_secret + PT_XXH3_SECRET - PT_XXH3_STRIPE + 8 * i);
        lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ with) * PT_PRIME32_1;
    }
}

/* Hashes more than 240 bytes: stripes of 64 bytes, with a scramble after each block of them. */
static inline uint64_t pt_xxh3_long(const pt_hashed *in, size_t bytes)
{
    uint64_t hash = bytes * PT_PRIME64_1;
    uint64_t lanes[PT_XXH3_LANES] = {PT_PRIME32_3, PT_PRIME64_1, PT_PRIME64_2, PT_PRIME64_3,
                                     PT_PRIME64_4, PT_PRIME32_2, PT_PRIME64_5, PT_PRIME32_1};
    for (size_t stripe = 0; stripe < (bytes - 1) / PT_XXH3_STRIPE; stripe++) {
        pt_xxh3_stripe(lanes, in, stripe * PT_XXH3_STRIPE, 8 * (stripe % PT_XXH3_BLOCK));
        if (stripe % PT_XXH3_BLOCK == PT_XXH3_BLOCK - 1)
            pt_xxh3_scramble(lanes);
    }
    pt_xxh3_stripe(lanes, in, bytes - PT_XXH3_STRIPE, PT_XXH3_SECRET - PT_XXH3_STRIPE - 7);
    for (size_t i = 0; i < PT_XXH3_LANES; i += 2) {
        const uint8_t *with = pt_xxh3_secret + 11 + 8 * i;
        hash += pt_xxh3_fold(lanes[i] ^ pt_xxh3_word(with), lanes[i + 1] ^ pt_xxh3_word(with + 8));
    }
    return pt_xxh3_avalanche(hash);
}

/* Returns the hash. The caller guarantees that there are at least PT_XXH3_LEAST bytes. */
static inline uint64_t pt_xxh3(const pt_hashed *in)
{
    uint8_t whole[PT_XXH3_MID];
    size_t bytes = in->first_bytes + in->second_bytes;
    if (bytes > sizeof whole)
        return pt_xxh3_long(in, bytes);
    pt_hashed_copy(in, 0, whole, bytes);
    return bytes <= 128 ? pt_xxh3_short(whole, bytes) : pt_xxh3_mid(whole, bytes);
}
