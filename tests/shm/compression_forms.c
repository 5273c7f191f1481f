/* compression_forms.c - both forms of the code of pages, for test_page_compression.py. */
#include "common/compression/page_code.h"

static const pt_exponent_coder *coder_of(int vector)
{
#if defined __x86_64__
    return vector ? &pt_avx2_coder : &pt_scalar_coder;
#else
    (void)vector;
    return &pt_scalar_coder;
#endif
}

uint64_t compress(int vector, uint8_t *page, uint64_t bytes, uint8_t *out, uint64_t room)
{
    pt_piece frame = {page, bytes};
    return pt_compress_page(coder_of(vector), &(pt_framed_page){&frame, bytes}, out, room);
}

int expand(int vector, const uint8_t *in, uint64_t length, uint8_t *page, uint64_t bytes)
{
    pt_piece frame = {page, bytes};
    return pt_expand_page(coder_of(vector), in, length, &(pt_framed_page){&frame, bytes});
}

/* Codes one block with bases that a byte decides, which need not fit it. Returns its bytes, 0 if they are too many. */
uint64_t encode(int vector, int width, const uint8_t *values, uint32_t groups, uint8_t base, uint8_t *out,
                uint64_t room)
{
    memset(out, base, PT_COLUMNS);
    uint8_t *end = coder_of(vector)->encode((enum pt_width)width, values, groups, out, out + room);
    return end ? (uint64_t)(end - out) : 0;
}

int decode(int vector, int width, const uint8_t *in, uint64_t bytes, uint32_t groups, uint8_t *values)
{
    return coder_of(vector)->decode((enum pt_width)width, in, bytes, groups, values);
}
