/* exponent_code_avx2.h - exponent_code.h for processors with AVX2, chosen when the code runs. */
#pragma once

#include "exponent_code.h"

#if defined __x86_64__
#include <immintrin.h>

#define PT_AVX2 __attribute__((target("avx2,popcnt")))
#define PT_AVX2_INLINE __attribute__((target("avx2,popcnt"), always_inline)) static inline

/* For each mask of 8 bits a word of 8 bytes. Byte i of PT_SPREAD is the number of bits set below bit i, or 0x80 if bit
 * i is not set: the shuffle puts the next escapes where the mask has bits. Byte k of PT_GATHER is the place of the
 * k-th bit that is set: the shuffle puts the bytes where the mask has bits side by side. */
#define PT_BIT(m, i) ((uint64_t)(m) >> (i) & 1)
#define PT_RANK(m, i)                                                                                                 \
    ((i > 0) * PT_BIT(m, 0) + (i > 1) * PT_BIT(m, 1) + (i > 2) * PT_BIT(m, 2) + (i > 3) * PT_BIT(m, 3) +              \
     (i > 4) * PT_BIT(m, 4) + (i > 5) * PT_BIT(m, 5) + (i > 6) * PT_BIT(m, 6))
#define PT_EACH(f, m) f(m, 0) | f(m, 1) | f(m, 2) | f(m, 3) | f(m, 4) | f(m, 5) | f(m, 6) | f(m, 7)
#define PT_SPREAD(m, i) (PT_BIT(m, i) ? PT_RANK(m, i) : 0x80ull) << 8 * (i)
#define PT_GATHER(m, i) (PT_BIT(m, i) * (i)) << 8 * PT_RANK(m, i)
#define PT_FOUR(f, m) PT_EACH(f, m), PT_EACH(f, (m) + 1), PT_EACH(f, (m) + 2), PT_EACH(f, (m) + 3)
#define PT_SIXTEEN(f, m) PT_FOUR(f, m), PT_FOUR(f, (m) + 4), PT_FOUR(f, (m) + 8), PT_FOUR(f, (m) + 12)
#define PT_SIXTY_FOUR(f, m) PT_SIXTEEN(f, m), PT_SIXTEEN(f, (m) + 16), PT_SIXTEEN(f, (m) + 32), PT_SIXTEEN(f, (m) + 48)
#define PT_ALL(f) PT_SIXTY_FOUR(f, 0), PT_SIXTY_FOUR(f, 64), PT_SIXTY_FOUR(f, 128), PT_SIXTY_FOUR(f, 192)

static const uint64_t pt_spread_table[256] = {PT_ALL(PT_SPREAD)}, pt_gather_table[256] = {PT_ALL(PT_GATHER)};

/* Returns the shuffle of 32 bytes for a mask of 32 bits. */
PT_AVX2_INLINE __m256i pt_shuffle_of(const uint64_t *table, uint32_t mask)
{
    __m256i words = _mm256_set_epi64x((long long)table[mask >> 24], (long long)table[mask >> 16 & 255],
                                      (long long)table[mask >> 8 & 255], (long long)table[mask & 255]);
    return _mm256_add_epi8(words, _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0));
}

PT_AVX2_INLINE __m256i pt_load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
PT_AVX2_INLINE void pt_save(uint8_t *at, __m256i v) { _mm256_storeu_si256((__m256i *)at, v); }

/* Rotates 32 values and returns their high bytes, and the low ones in *low. */
PT_AVX2_INLINE __m256i pt_halves(const uint8_t *values, __m256i *low)
{
    __m256i a = pt_load(values), b = pt_load(values + 32), byte = _mm256_set1_epi16(255);
    a = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
    b = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
    *low = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    return _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
}

PT_AVX2 static void pt_avx2_highest(const uint8_t *values, uint32_t groups, uint8_t *columns)
{
    __m256i most[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i low;
    for (uint32_t row = 0; row < groups * PT_GROUP / PT_COLUMNS; row++)
        for (uint32_t v = 0; v < 4; v++, values += 64)
            most[v] = _mm256_max_epu8(most[v], pt_halves(values, &low));
    for (uint32_t v = 0; v < 4; v++)
        pt_save(columns + 32 * v, most[v]);
}

PT_AVX2 static uint32_t pt_avx2_sample(const uint8_t *values, uint32_t groups, uint8_t *sample)
{
    uint32_t rows = 0;
    __m256i low;
    for (uint32_t row = 0; row < groups * PT_GROUP / PT_COLUMNS; row += PT_SAMPLED_ROWS, rows++)
        for (uint32_t v = 0; v < 4; v++, sample += 32)
            pt_save(sample, pt_halves(values + row * 2 * PT_COLUMNS + 64 * v, &low));
    return rows;
}

PT_AVX2 static void pt_avx2_misses(const uint8_t *sample, uint32_t rows, const uint8_t *bases, uint8_t span,
                                   uint8_t *counts)
{
    for (uint32_t v = 0; v < 4; v++) {
        __m256i count = _mm256_setzero_si256(), base = pt_load(bases + 32 * v);
        __m256i first = _mm256_set1_epi8((char)(span + 1));
        for (uint32_t row = 0; row < rows; row++) {
            __m256i d = _mm256_sub_epi8(pt_load(sample + row * PT_COLUMNS + 32 * v), base);
            count = _mm256_sub_epi8(count, _mm256_cmpeq_epi8(_mm256_max_epu8(d, first), d));
        }
        pt_save(counts + 32 * v, count);
    }
}

/* Appends the bytes of `high` where `mask` has bits, and returns the new end. Writes up to PT_WIDE_LOAD bytes more. */
PT_AVX2_INLINE uint8_t *pt_append_escapes(uint8_t *end, __m256i high, uint32_t mask)
{
    __m256i side_by_side = _mm256_shuffle_epi8(high, pt_shuffle_of(pt_gather_table, mask));
    __m128i half = _mm256_castsi256_si128(side_by_side);
    _mm_storel_epi64((__m128i *)end, half);
    end += __builtin_popcount(mask & 255);
    _mm_storel_epi64((__m128i *)end, _mm_unpackhi_epi64(half, half));
    end += __builtin_popcount(mask & 0xff00);
    half = _mm256_extracti128_si256(side_by_side, 1);
    _mm_storel_epi64((__m128i *)end, half);
    end += __builtin_popcount(mask & 0xff0000);
    _mm_storel_epi64((__m128i *)end, _mm_unpackhi_epi64(half, half));
    return end + __builtin_popcount(mask & 0xff000000);
}

/* Returns the next bytes from *at on where `mask` has bits. Reads up to PT_WIDE_LOAD bytes more. */
PT_AVX2_INLINE __m256i pt_next_escapes(const uint8_t **at, uint32_t mask)
{
    const uint8_t *b = *at + __builtin_popcount(mask & 255), *c = b + __builtin_popcount(mask & 0xff00),
                  *d = c + __builtin_popcount(mask & 0xff0000);
    __m128i first = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)*at), _mm_loadl_epi64((const __m128i *)b));
    __m128i second = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)c), _mm_loadl_epi64((const __m128i *)d));
    *at = d + __builtin_popcount(mask & 0xff000000);
    return _mm256_shuffle_epi8(_mm256_set_m128i(second, first), pt_shuffle_of(pt_spread_table, mask));
}

/* Codes one group. With 4 bits escapes are so rare that a branch takes less than their shuffle. */
PT_AVX2_INLINE uint8_t *pt_encode_group(enum pt_width width, const uint8_t *values, const uint8_t *bases,
                                        const pt_code_parts *to)
{
    const __m256i last = _mm256_set1_epi8((char)((1u << width) - 1)), three = _mm256_set1_epi8(3);
    __m256i wide[4], narrow[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, low;
    uint8_t *escapes = to->escapes;
    for (int v = 0; v < 8; v++) {
        __m256i high = pt_halves(values + 64 * v, &low);
        pt_save(to->low + 32 * v, low);
        __m256i d = _mm256_min_epu8(_mm256_sub_epi8(high, pt_load(bases + 32 * (v % 4))), last);
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(d, last));
        if (width != PT_WIDTH_4 || mask)
            escapes = pt_append_escapes(escapes, high, mask);
        if (width == PT_WIDTH_3) {
            __m256i code = _mm256_slli_epi16(_mm256_and_si256(d, three), 2 * (v % 4));
            wide[v / 4] = v % 4 ? _mm256_or_si256(wide[v / 4], code) : code;
            d = _mm256_and_si256(_mm256_srli_epi16(d, 2), _mm256_set1_epi8(1));
            narrow[0] = _mm256_or_si256(narrow[0], _mm256_slli_epi16(d, v));
        } else {
            __m256i code = _mm256_slli_epi16(_mm256_and_si256(d, _mm256_set1_epi8(15)), 4 * (v % 2));
            wide[v / 2] = v % 2 ? _mm256_or_si256(wide[v / 2], code) : code;
        }
        if (width == PT_WIDTH_6) {
            d = _mm256_and_si256(_mm256_srli_epi16(d, 4), three);
            narrow[v / 4] = _mm256_or_si256(narrow[v / 4], _mm256_slli_epi16(d, 2 * (v % 4)));
        }
    }
    for (int v = 0; v < (width == PT_WIDTH_3 ? 2 : 4); v++)
        pt_save(to->wide + 32 * v, wide[v]);
    for (int v = 0; v < (width == PT_WIDTH_3 ? 1 : width == PT_WIDTH_6 ? 2 : 0); v++)
        pt_save(to->narrow + 32 * v, narrow[v]);
    return escapes;
}

PT_AVX2_INLINE void pt_next_group(enum pt_width width, pt_code_parts *parts)
{
    parts->low += PT_GROUP;
    parts->wide += width == PT_WIDTH_3 ? PT_GROUP / 4 : PT_GROUP / 2;
    parts->narrow += width == PT_WIDTH_3 ? PT_GROUP / 8 : PT_GROUP / 4;
}

PT_AVX2_INLINE uint8_t *pt_encode_width(enum pt_width width, const uint8_t *values, uint32_t groups, uint8_t *out,
                                        const uint8_t *limit)
{
    pt_code_parts to = pt_parts_of(width, out, groups);
    for (; groups; groups--, values += PT_GROUP_BYTES, pt_next_group(width, &to)) {
        if (to.escapes > limit || limit - to.escapes < PT_GROUP + PT_WIDE_LOAD)
            return NULL;
        to.escapes = pt_encode_group(width, values, out, &to);
    }
    return to.escapes;
}

PT_AVX2 static uint8_t *pt_avx2_encode(enum pt_width width, const uint8_t *values, uint32_t groups, uint8_t *out,
                                       const uint8_t *limit)
{
    switch (width) {
    case PT_WIDTH_3:
        return pt_encode_width(PT_WIDTH_3, values, groups, out, limit);
    case PT_WIDTH_4:
        return pt_encode_width(PT_WIDTH_4, values, groups, out, limit);
    default:
        return pt_encode_width(PT_WIDTH_6, values, groups, out, limit);
    }
}

/* Decodes one group, and returns the escapes that follow. The caller guarantees that PT_GROUP + PT_WIDE_LOAD bytes may
 * be read from *escapes on. */
PT_AVX2_INLINE const uint8_t *pt_decode_group(enum pt_width width, const pt_code_parts *from, const uint8_t *bases,
                                              uint8_t *values)
{
    const __m256i last = _mm256_set1_epi8((char)((1u << width) - 1)), three = _mm256_set1_epi8(3);
    const __m256i fifteen = _mm256_set1_epi8(15), four = _mm256_set1_epi8(4);
    const uint8_t *escapes = from->escapes;
    for (int v = 0; v < 8; v++) {
        __m256i d, high, low = pt_load(from->low + 32 * v);
        if (width == PT_WIDTH_3) {
            d = _mm256_and_si256(_mm256_srli_epi16(pt_load(from->wide + v / 4 * 32), 2 * (v % 4)), three);
            __m256i bit = pt_load(from->narrow);
            bit = v < 3 ? _mm256_slli_epi16(bit, 2 - v % 3) : _mm256_srli_epi16(bit, v - 2);
            d = _mm256_or_si256(d, _mm256_and_si256(bit, four));
        } else {
            d = _mm256_and_si256(_mm256_srli_epi16(pt_load(from->wide + v / 2 * 32), 4 * (v % 2)), fifteen);
        }
        if (width == PT_WIDTH_6) {
            __m256i more = _mm256_srli_epi16(pt_load(from->narrow + v / 4 * 32), 2 * (v % 4));
            d = _mm256_or_si256(d, _mm256_slli_epi16(_mm256_and_si256(more, three), 4));
        }
        high = _mm256_add_epi8(d, pt_load(bases + 32 * (v % 4)));
        __m256i escaped = _mm256_cmpeq_epi8(d, last);
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(escaped);
        if (width != PT_WIDTH_4 || mask)
            high = _mm256_blendv_epi8(high, pt_next_escapes(&escapes, mask), escaped);
        __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
        pt_save(values + 64 * v, _mm256_or_si256(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15)));
        pt_save(values + 64 * v + 32, _mm256_or_si256(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15)));
    }
    return escapes;
}

PT_AVX2_INLINE bool pt_decode_width(enum pt_width width, const uint8_t *in, uint64_t bytes, uint32_t groups,
                                    uint8_t *values)
{
    uint8_t rest[2 * (PT_GROUP + PT_WIDE_LOAD)] = {0};
    if (bytes < pt_code_bytes(width, groups))
        return false;
    pt_code_parts from = pt_parts_of(width, in, groups);
    const uint8_t *escapes = from.escapes, *end = in + bytes;
    for (; groups; groups--, values += PT_GROUP_BYTES, pt_next_group(width, &from)) {
        /* The last escapes are moved to where a group may read more of them than there are. */
        if (end - escapes < PT_GROUP + PT_WIDE_LOAD && end == in + bytes) {
            memcpy(rest, escapes, (size_t)(end - escapes));
            end = rest + (end - escapes);
            escapes = rest;
        }
        from.escapes = (uint8_t *)escapes;
        escapes = pt_decode_group(width, &from, in, values);
        if (escapes > end)
            return false;
    }
    return escapes == end;
}

PT_AVX2 static bool pt_avx2_decode(enum pt_width width, const uint8_t *in, uint64_t bytes, uint32_t groups,
                                   uint8_t *values)
{
    switch (width) {
    case PT_WIDTH_3:
        return pt_decode_width(PT_WIDTH_3, in, bytes, groups, values);
    case PT_WIDTH_4:
        return pt_decode_width(PT_WIDTH_4, in, bytes, groups, values);
    default:
        return pt_decode_width(PT_WIDTH_6, in, bytes, groups, values);
    }
}

static const pt_exponent_coder pt_avx2_coder = {
    pt_avx2_highest, pt_avx2_sample, pt_avx2_misses, pt_avx2_encode, pt_avx2_decode,
};

static inline bool pt_has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"); }
static inline const pt_exponent_coder *pt_exponent_coder_here(void)
{
    return pt_has_avx2() ? &pt_avx2_coder : &pt_scalar_coder;
}
#else
static inline bool pt_has_avx2(void) { return false; }
static inline const pt_exponent_coder *pt_exponent_coder_here(void) { return &pt_scalar_coder; }
#endif
