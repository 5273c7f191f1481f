/* compression.c - pages that are compressed and then damaged, and bytes that never were a page. The scalar and the
 * vector form write the same bytes, accept the same ones, and touch nothing outside of a page and its frames. */
#define FINDING_END() abort()

#include "report.h"
#include "choices.h"

#include "common/compression/page_code.h"

#define MOST_FRAMES 8u

static const pt_exponent_coder *const forms[2] = {
    &pt_scalar_coder,
#if defined __x86_64__
    &pt_avx2_coder,
#else
    &pt_scalar_coder,
#endif
};

/* A page in frames of any sizes, each in memory of exactly its size. */
typedef struct {
    pt_piece frames[MOST_FRAMES];
    pt_framed_page page;
    uint32_t count;
} framed;

static framed new_page(uint64_t bytes, choices sizes)
{
    framed f = {.page = {.bytes = bytes}};
    while (bytes) {
        uint64_t some = f.count + 1 == MOST_FRAMES ? bytes : 1 + choose(&sizes, 1024);
        some = some < bytes ? some : bytes;
        f.frames[f.count++] = (pt_piece){malloc(some), some};
        bytes -= some;
    }
    return f;
}

static void free_page(framed *f)
{
    while (f->count)
        free(f->frames[--f->count].at);
}

static void copy_page(framed *f, enum pt_copy_way way, uint8_t *memory)
{
    pt_page_place place = {f->frames, 0};
    pt_copy_frames(&place, way, memory, f->page.bytes);
}

/* Fills a page with values whose exponents are close to each other, far apart, or both. */
static void fill(choices *c, uint8_t *values, uint64_t bytes)
{
    uint32_t state = (uint32_t)choose_number(c, 2) | 1, spread = choose(c, 12), outliers = 1 + choose(c, 64);
    bool noisy = choose_one_in(c, 8);
    for (uint64_t i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        bool far = (state >> 20) % outliers == 0;
        uint32_t high = far ? state >> 24 : 120 + (state >> 24) % (spread + 1);
        uint32_t noise = noisy ? state >> 9 : 0;
        values[i] = (uint8_t)((i % 2 ? high >> 1 : high << 7 | (state >> 10 & 0x7f)) ^ noise);
    }
}

/* Expands bytes in memory of exactly their size by both forms, into `back` if they are a page. */
static bool expanded(const uint8_t *coded, uint64_t length, uint64_t bytes, choices sizes, uint8_t *back)
{
    bool found[2];
    uint8_t *exact = malloc(length ? length : 1), *pages[2] = {malloc(bytes + 1), malloc(bytes + 1)};
    memcpy(exact, coded, length);
    for (int i = 0; i < 2; i++) {
        framed f = new_page(bytes, sizes);
        f.page.frames = f.frames;
        found[i] = pt_expand_page(forms[i], exact, length, &f.page);
        if (found[i])
            copy_page(&f, PT_FROM_FRAMES, pages[i]);
        free_page(&f);
    }
    if (found[0] != found[1] || (found[0] && memcmp(pages[0], pages[1], bytes)))
        finding("the forms expand %lu bytes differently", length);
    if (found[0])
        memcpy(back, pages[0], bytes);
    free(exact), free(pages[0]), free(pages[1]);
    return found[0];
}

/* Compresses a page by both forms into memory of exactly `room` bytes. */
static uint64_t compressed(uint8_t *values, uint64_t bytes, choices sizes, uint8_t *out, uint64_t room)
{
    uint64_t lengths[2];
    uint8_t *exact[2] = {calloc(room + 1, 1), calloc(room + 1, 1)};
    for (int i = 0; i < 2; i++) {
        framed f = new_page(bytes, sizes);
        f.page.frames = f.frames;
        copy_page(&f, PT_TO_FRAMES, values);
        lengths[i] = pt_compress_page(forms[i], &f.page, exact[i], room);
        if (lengths[i] > room || exact[i][room])
            finding("%lu bytes were written to %lu", lengths[i], room);
        free_page(&f);
    }
    if (lengths[0] != lengths[1] || memcmp(exact[0], exact[1], lengths[0]))
        finding("the forms write %lu and %lu bytes, or other ones", lengths[0], lengths[1]);
    memcpy(out, exact[0], lengths[0]);
    free(exact[0]), free(exact[1]);
    return lengths[0];
}

static void damage(choices *c, uint8_t *coded, uint64_t *length)
{
    for (uint32_t count = choose(c, 4); count && *length; count--)
        coded[choose(c, (uint32_t)*length)] = choose_byte(c);
    if (choose_one_in(c, 4) && *length) { /* such as nothing but escapes */
        uint32_t at = choose(c, (uint32_t)*length);
        memset(coded + at, choose_one_in(c, 2) ? 255 : choose_byte(c), choose(c, (uint32_t)*length - at + 1));
    }
    if (choose_one_in(c, 4) && *length)
        *length -= choose(c, (uint32_t)*length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    choices c = {data, size};
    uint64_t bytes = choose_one_in(&c, 4) ? 1 + choose(&c, 2048) : PT_GROUP_BYTES * (1 + choose(&c, 6));
    uint64_t length = size < 200 ? size : 200, most = bytes + bytes / 4 + 64;
    uint64_t room = most - choose(&c, (uint32_t)most / 2);
    uint8_t *values = malloc(bytes), *back = malloc(bytes), *coded = calloc(most + 200, 1);
    choices sizes = c;
    memcpy(coded, data, length);
    expanded(coded, length, bytes, sizes, back);
    fill(&c, values, bytes);
    length = compressed(values, bytes, sizes, coded, room);
    if (length) {
        if (!expanded(coded, length, bytes, sizes, back) || memcmp(values, back, bytes))
            finding("a page of %lu bytes does not come back", bytes);
        damage(&c, coded, &length);
        expanded(coded, length, bytes, sizes, back);
    }
    free(values), free(back), free(coded);
    return 0;
}
