/* reserve_message.h - reads the usual request for a reservation from the bytes of its message, and writes its response.
 *
 * The message is Reserve of shm/protocol.py in msgpack, which any process may send that may attach: nothing is read
 * before its bytes are known to be there. A message that is invalid, or valid and rare (hints, several prompts, names
 * beyond ASCII), is `unusual`. The daemon decodes it in Python, and answers what is wrong with it. */
#pragma once

#include "requests.h"

#define PT_RESERVE_LENGTH_BYTES 4u
#define PT_MOST_SAID_DEPTH ((1u << 24) - 1)

typedef struct {
    const uint8_t *at;
    size_t bytes;
} pt_span;

/* What is left of a message. Nothing is read from it any more once it is unusual. */
typedef struct {
    pt_span left;
    bool unusual;
} pt_unread;

typedef struct {
    uint64_t number; /* of the request */
    pt_space space;
    pt_request request; /* without what the daemon knows: slot, space, time and number of the reservation */
    pt_prompt prompt;
    const uint8_t *keys, *sizes; /* in the message, of any alignment */
    uint32_t pages;
} pt_reserve_message;

/* Returns the next bytes of the message; none if there are fewer. */
static inline pt_span pt_read(pt_unread *m, uint64_t bytes)
{
    pt_span span = {m->left.at, bytes};
    m->unusual |= bytes > m->left.bytes;
    if (m->unusual)
        return (pt_span){NULL, 0};
    m->left = (pt_span){m->left.at + bytes, m->left.bytes - bytes};
    return span;
}

static inline uint64_t pt_read_big_endian(pt_unread *m, uint32_t bytes)
{
    pt_span span = pt_read(m, bytes);
    uint64_t number = 0;
    for (size_t i = 0; i < span.bytes; i++)
        number = number << 8 | span.at[i];
    return number;
}

static inline uint8_t pt_read_byte(pt_unread *m) { return (uint8_t)pt_read_big_endian(m, 1); }

static inline void pt_expect_bytes(pt_unread *m, const char *expected, size_t bytes)
{
    pt_span span = pt_read(m, bytes);
    m->unusual |= span.bytes != bytes || memcmp(span.at, expected, bytes);
}

/* Reads a number from 0 to `most`. */
static inline uint64_t pt_read_number(pt_unread *m, uint64_t most)
{
    uint8_t kind = pt_read_byte(m);
    bool follows = kind >= 0xcc && kind <= 0xcf;
    uint64_t number = follows ? pt_read_big_endian(m, 1u << (kind - 0xcc)) : kind;
    m->unusual |= number > most || (!follows && kind > 0x7f);
    return number;
}

static inline pt_span pt_read_bytes(pt_unread *m)
{
    uint8_t kind = pt_read_byte(m);
    m->unusual |= kind < 0xc4 || kind > 0xc6;
    return m->unusual ? (pt_span){NULL, 0} : pt_read(m, pt_read_big_endian(m, 1u << (kind - 0xc4)));
}

static inline pt_span pt_read_text(pt_unread *m)
{
    uint8_t kind = pt_read_byte(m);
    m->unusual |= kind != 0xd9 && (kind & 0xe0) != 0xa0;
    return m->unusual ? (pt_span){NULL, 0} : pt_read(m, kind == 0xd9 ? pt_read_byte(m) : kind & 0x1fu);
}

/* Reads the label of a namespace. The daemon replaces letters that a terminal might interpret, see printable(). */
static inline void pt_read_name(pt_unread *m, pt_space *space)
{
    pt_span name = pt_read_text(m);
    for (size_t i = 0; i < name.bytes; i++)
        m->unusual |= name.at[i] < 0x20 || name.at[i] > 0x7e;
    memcpy(space->name, name.at ? name.at : (const uint8_t *)"",
           name.bytes < PT_NAME_BYTES ? name.bytes : PT_NAME_BYTES - 1);
}

static inline void pt_read_space(pt_unread *m, pt_space *space)
{
    pt_expect_bytes(m, "\x95", 1);
    pt_span digest = pt_read_bytes(m);
    m->unusual |= digest.bytes != PT_KEY_BYTES;
    if (!m->unusual)
        memcpy(space->digest, digest.at, PT_KEY_BYTES);
    pt_read_name(m, space);
    space->page_tokens = (uint32_t)pt_read_number(m, UINT32_MAX);
    space->group = (uint8_t)pt_read_number(m, UINT8_MAX);
    space->window = (uint32_t)pt_read_number(m, UINT32_MAX);
}

/* Reads the number of a prompt's first page, counted from 0, or -1: not known. Returns it counted from 1. */
static inline uint32_t pt_read_depth(pt_unread *m)
{
    bool unknown = m->left.bytes && *m->left.at == 0xff;
    if (unknown)
        pt_read_byte(m);
    return unknown ? 0 : (uint32_t)pt_read_number(m, PT_MOST_SAID_DEPTH) + 1;
}

/* Reads the one prompt of a request: its first page, which is the first of the request,
 * the key before it, and its depth. */
static inline void pt_read_prompt(pt_unread *m, pt_prompt *prompt)
{
    pt_expect_bytes(m, "\x93\x00", 2);
    pt_span before = pt_read_bytes(m);
    m->unusual |= before.bytes && before.bytes != PT_KEY_BYTES;
    prompt->parent = before.bytes ? before.at : NULL;
    prompt->depth = pt_read_depth(m);
}

static inline void pt_read_prompts(pt_unread *m, pt_reserve_message *out)
{
    uint8_t kind = pt_read_byte(m);
    m->unusual |= kind != 0xc0 && kind != 0x90 && kind != 0x91;
    out->request.prompt_kind = kind == 0xc0 ? PT_PROMPT_UNKNOWN : kind == 0x90 ? PT_PROMPT_NONE : PT_PROMPT_KNOWN;
    if (kind == 0x91)
        pt_read_prompt(m, &out->prompt);
}

static inline void pt_read_pages(pt_unread *m, pt_reserve_message *out)
{
    pt_span keys = pt_read_bytes(m), sizes = pt_read_bytes(m);
    out->keys = keys.at;
    out->sizes = sizes.at;
    out->pages = (uint32_t)(keys.bytes / PT_KEY_BYTES);
    m->unusual |= !out->pages || keys.bytes % PT_KEY_BYTES || sizes.bytes != 8 * (uint64_t)out->pages;
}

static inline void pt_read_body(pt_unread *m, pt_reserve_message *out)
{
    pt_expect_bytes(m, "\x9b\xa7reserve", 9);
    out->number = pt_read_number(m, UINT64_MAX);
    pt_read_space(m, &out->space);
    out->request.part = (uint32_t)pt_read_number(m, PT_PARTS - 1);
    out->request.parts = (uint32_t)pt_read_number(m, PT_PARTS);
    m->unusual |= out->request.part >= out->request.parts;
    pt_read_pages(m, out);
    out->request.division = (uint32_t)pt_read_number(m, UINT32_MAX);
    pt_read_prompts(m, out);
    pt_expect_bytes(m, "\x00\xcb", 2); /* without a hint */
    pt_read(m, 8); /* its time to live */
    m->unusual |= m->left.bytes > 0;
}

/* Reads a message of exactly these bytes. Returns false if it is unusual. */
static inline bool pt_read_reserve(const uint8_t *message, size_t bytes, pt_reserve_message *out)
{
    pt_unread m = {{message, bytes}, false};
    uint32_t length = 0;
    *out = (pt_reserve_message){.space = {.used = 1, .first = PT_NONE}};
    pt_span prefix = pt_read(&m, PT_RESERVE_LENGTH_BYTES);
    if (prefix.at)
        memcpy(&length, prefix.at, sizeof length);
    m.unusual |= length != m.left.bytes;
    if (!m.unusual)
        pt_read_body(&m, out);
    return !m.unusual;
}

/* Reads the sizes into an array. Returns their sum, UINT64_MAX if it is larger. */
static inline uint64_t pt_read_sizes(const pt_reserve_message *m, uint64_t *sizes)
{
    uint64_t sum = 0;
    memcpy(sizes, m->sizes, 8 * (size_t)m->pages);
    for (uint32_t i = 0; i < m->pages; i++)
        sum = sizes[i] > UINT64_MAX - sum ? UINT64_MAX : sum + sizes[i];
    return sum;
}

#define PT_RESERVED_NAME "\x96\xa8reserved"

/* Returns the bytes of a response without a reason: length, name, number, three arrays with their lengths, and "". */
static inline size_t pt_reserved_bytes(uint32_t pages)
{
    return PT_RESERVE_LENGTH_BYTES + sizeof PT_RESERVED_NAME - 1 + 9 + 3 * 5 + (1 + 4 + 8) * (size_t)pages + 1;
}

/* Writes a number of `bytes` bytes after a byte that says its kind. Returns what is after it. */
static inline uint8_t *pt_put_big_endian(uint8_t *at, uint8_t kind, uint64_t number, uint32_t bytes)
{
    *at++ = kind;
    while (bytes--)
        *at++ = (uint8_t)(number >> 8 * bytes);
    return at;
}

/* Writes Reserved of shm/protocol.py, without a reason. */
static inline void pt_write_reserved(uint8_t *at, uint64_t number, const pt_answer *answers, uint32_t pages)
{
    uint32_t length = (uint32_t)(pt_reserved_bytes(pages) - PT_RESERVE_LENGTH_BYTES);
    memcpy(at, &length, sizeof length);
    memcpy(at + sizeof length, PT_RESERVED_NAME, sizeof PT_RESERVED_NAME - 1);
    at = pt_put_big_endian(at + sizeof length + sizeof PT_RESERVED_NAME - 1, 0xcf, number, 8);
    uint8_t *outcomes = pt_put_big_endian(at, 0xc6, pages, 4);
    uint8_t *entries = pt_put_big_endian(outcomes + pages, 0xc6, 4 * (uint64_t)pages, 4);
    uint8_t *serials = pt_put_big_endian(entries + 4 * (size_t)pages, 0xc6, 8 * (uint64_t)pages, 4);
    for (uint32_t i = 0; i < pages; i++) {
        outcomes[i] = (uint8_t)answers[i].outcome;
        memcpy(entries + 4 * (size_t)i, &answers[i].entry, 4);
        memcpy(serials + 8 * (size_t)i, &answers[i].serial, 8);
    }
    serials[8 * (size_t)pages] = 0xa0; /* "" */
}
