/* exponent_code.h - a code of fixed width for the exponents of 16-bit floats, without loss: its format, and the scalar
 * form, which is the reference of exponent_code_avx2.h. Both write the same bytes.
 *
 * A value is rotated left by one bit. Its high byte then is the exponent of a bfloat16, or exponent and three bits of
 * mantissa of a float16, and its low byte the rest and the sign. Low bytes are kept. A high byte becomes a code of 3, 4
 * or 6 bits, its distance from the base of its column. The largest code is an escape, whose high byte follows in order.
 *
 * A block of n values is: a base for each column, n low bytes, n codes, the escapes. Within 32 values the second and
 * the third eight are exchanged, as vector instructions pack them; this is the order of all four. Column c has the
 * values c, c + 128, ... of that order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PT_COLUMNS 128u
#define PT_GROUP 256u      /* values that are coded together: a block has a whole number of them */
#define PT_GROUP_BYTES 512u
#define PT_SAMPLED_ROWS 3u /* one row of so many is in the sample; odd, as rows of a cache are powers of two */
#define PT_WIDE_LOAD 8u    /* bytes that may be read or written past the last escape of a group */

/* Widths of codes in bits. They are the modes of blocks in page_code.h. */
enum pt_width { PT_WIDTH_3 = 3, PT_WIDTH_4 = 4, PT_WIDTH_6 = 6 };

/* The implementation of the code. A block has at most 32,768 values, `groups` groups of PT_GROUP. */
typedef struct {
    /* Writes the largest high byte of each column. */
    void (*highest)(const uint8_t *values, uint32_t groups, uint8_t *columns);
    /* Writes the high bytes of the sampled rows, end to end, and returns the number of rows. */
    uint32_t (*sample)(const uint8_t *values, uint32_t groups, uint8_t *sample);
    /* Counts for each column the sampled high bytes that are not in [base, base + span]. */
    void (*misses)(const uint8_t *sample, uint32_t rows, const uint8_t *bases, uint8_t span, uint8_t *counts);
    /* Codes a block, whose bases are at the beginning of `out`. Returns the end; NULL if that is after `limit`, or so
     * close to it that a group of escapes might have been. */
    uint8_t *(*encode)(enum pt_width width, const uint8_t *values, uint32_t groups, uint8_t *out, const uint8_t *limit);
    /* Decodes a block of `bytes` bytes. Returns false if these are none. Another process may change them: what is
     * written to `values` is undefined then, and nothing outside is read or written. */
    bool (*decode)(enum pt_width width, const uint8_t *in, uint64_t bytes, uint32_t groups, uint8_t *values);
} pt_exponent_coder;

/* Returns the bytes of a block before its escapes. */
static inline uint32_t pt_code_bytes(enum pt_width width, uint32_t groups)
{
    return PT_COLUMNS + groups * (PT_GROUP + PT_GROUP / 8 * width);
}

/* The parts of a block. The codes are in one or two planes: 3 is 2 + 1 bits, 6 is 4 + 2 bits. */
typedef struct {
    uint8_t *low, *wide, *narrow, *escapes;
} pt_code_parts;

static inline pt_code_parts pt_parts_of(enum pt_width width, const uint8_t *block, uint32_t groups)
{
    pt_code_parts p;
    p.low = (uint8_t *)block + PT_COLUMNS;
    p.wide = p.low + groups * PT_GROUP;
    p.narrow = p.wide + groups * (width == PT_WIDTH_3 ? PT_GROUP / 4 : PT_GROUP / 2);
    p.escapes = (uint8_t *)block + pt_code_bytes(width, groups);
    return p;
}

/* Returns the place of a value of a group: bits 3 and 4 of its number are exchanged. */
static inline uint32_t pt_packed_place(uint32_t number)
{
    return (number & ~24u) | (number & 8) << 1 | (number & 16) >> 1;
}

/* Returns a value, rotated, by its place in a block. */
static inline uint16_t pt_rotated(const uint8_t *values, uint32_t place)
{
    uint16_t value;
    memcpy(&value, values + 2 * (size_t)pt_packed_place(place), sizeof value);
    return (uint16_t)(value << 1 | value >> 15);
}

static inline void pt_scalar_highest(const uint8_t *values, uint32_t groups, uint8_t *columns)
{
    memset(columns, 0, PT_COLUMNS);
    for (uint32_t i = 0; i < groups * PT_GROUP; i++) {
        uint8_t high = (uint8_t)(pt_rotated(values, i) >> 8);
        if (high > columns[i % PT_COLUMNS])
            columns[i % PT_COLUMNS] = high;
    }
}

static inline uint32_t pt_scalar_sample(const uint8_t *values, uint32_t groups, uint8_t *sample)
{
    uint32_t rows = 0;
    for (uint32_t row = 0; row < groups * PT_GROUP / PT_COLUMNS; row += PT_SAMPLED_ROWS, rows++)
        for (uint32_t column = 0; column < PT_COLUMNS; column++)
            *sample++ = (uint8_t)(pt_rotated(values, row * PT_COLUMNS + column) >> 8);
    return rows;
}

static inline void pt_scalar_misses(const uint8_t *sample, uint32_t rows, const uint8_t *bases, uint8_t span,
                                    uint8_t *counts)
{
    memset(counts, 0, PT_COLUMNS);
    for (uint32_t i = 0; i < rows * PT_COLUMNS; i++)
        counts[i % PT_COLUMNS] += (uint8_t)(sample[i] - bases[i % PT_COLUMNS]) > span;
}

/* Where the codes of the `vector`th 32 values of a group are: the byte of the first one, and the bits of that byte. */
typedef struct {
    uint32_t byte, shift, mask;
} pt_code_place;

/* Returns it for a plane of codes of 1, 2 or 4 bits: the codes of one vector have the same bits of 32 bytes. */
static inline pt_code_place pt_code_place_of(uint32_t bits, uint32_t group, uint32_t vector)
{
    uint32_t in_byte = 8 / bits;
    return (pt_code_place){group * 32 * bits + vector / in_byte * 32, vector % in_byte * bits, (1u << bits) - 1};
}

static inline void pt_put_code(uint8_t *plane, uint32_t bits, uint32_t i, uint32_t code)
{
    pt_code_place at = pt_code_place_of(bits, i / PT_GROUP, i % PT_GROUP / 32);
    uint8_t *byte = plane + at.byte + i % 32, kept = at.shift ? *byte : 0;
    *byte = (uint8_t)(kept | (code & at.mask) << at.shift);
}

static inline uint32_t pt_get_code(const uint8_t *plane, uint32_t bits, uint32_t i)
{
    pt_code_place at = pt_code_place_of(bits, i / PT_GROUP, i % PT_GROUP / 32);
    return plane[at.byte + i % 32] >> at.shift & at.mask;
}

static inline uint8_t *pt_scalar_encode(enum pt_width width, const uint8_t *values, uint32_t groups, uint8_t *out,
                                        const uint8_t *limit)
{
    pt_code_parts to = pt_parts_of(width, out, groups);
    uint32_t last = (1u << width) - 1, bits = width == PT_WIDTH_3 ? 2 : 4;
    for (uint32_t i = 0; i < groups * PT_GROUP; i++) {
        if (i % PT_GROUP == 0 && (to.escapes > limit || limit - to.escapes < PT_GROUP + PT_WIDE_LOAD))
            return NULL;
        uint16_t value = pt_rotated(values, i);
        uint32_t code = (uint8_t)((value >> 8) - out[i % PT_COLUMNS]);
        if (code >= last) {
            code = last;
            *to.escapes++ = (uint8_t)(value >> 8);
        }
        to.low[i] = (uint8_t)value;
        pt_put_code(to.wide, bits, i, code);
        if (width != PT_WIDTH_4)
            pt_put_code(to.narrow, width - bits, i, code >> bits);
    }
    return to.escapes;
}

static inline bool pt_scalar_decode(enum pt_width width, const uint8_t *in, uint64_t bytes, uint32_t groups,
                                    uint8_t *values)
{
    if (bytes < pt_code_bytes(width, groups))
        return false;
    const pt_code_parts from = pt_parts_of(width, in, groups);
    const uint8_t *escape = from.escapes, *end = in + bytes;
    uint32_t last = (1u << width) - 1, bits = width == PT_WIDTH_3 ? 2 : 4;
    for (uint32_t i = 0; i < groups * PT_GROUP; i++) {
        uint32_t code = pt_get_code(from.wide, bits, i);
        if (width != PT_WIDTH_4)
            code |= pt_get_code(from.narrow, width - bits, i) << bits;
        uint32_t high = (uint8_t)(code + in[i % PT_COLUMNS]);
        if (code == last) {
            if (escape == end)
                return false;
            high = *escape++;
        }
        uint16_t value = (uint16_t)(high << 8 | from.low[i]);
        value = (uint16_t)(value >> 1 | value << 15);
        memcpy(values + 2 * (size_t)pt_packed_place(i), &value, sizeof value);
    }
    return escape == end;
}

static const pt_exponent_coder pt_scalar_coder = {
    pt_scalar_highest, pt_scalar_sample, pt_scalar_misses, pt_scalar_encode, pt_scalar_decode,
};
