/* reserve_message.h - reads a request for a reservation from the bytes of its message, and lays out the response.
 *
 * Both are frames of fixed structs, with rows behind them (shm/message_codec.py). Any process may send
 * one that may attach: nothing is read before its bytes are known to be there, and every field is copied, since a frame
 * has no alignment. */
#pragma once

#include "requests.h"

#define PT_LENGTH_BYTES 4u /* before each message, its length without them */
#define PT_FRAME 0xc1u /* the first byte of a frame, with which no message in msgpack begins */
#define PT_PROMPTS_UNKNOWN UINT32_MAX /* as the number of prompts */
#define PT_MOST_SAID_DEPTH (1u << 24)

/* The beginning of a request. The label of its namespace follows, then its prompts, then its pages. */
typedef struct __attribute__((packed)) {
    uint8_t frame, group, part, parts;
    uint64_t number;
    uint64_t hint_ttl_ns;
    uint32_t hint, division, page_tokens, window;
    uint32_t name_bytes, prompts, pages;
    uint8_t digest[PT_KEY_BYTES];
} pt_reserve_head;

/* A prompt of a request. */
typedef struct __attribute__((packed)) {
    uint8_t parent[PT_KEY_BYTES]; /* the key of the page before the first one; zeros: none, or not known */
    uint32_t begin;
    uint32_t depth; /* number of the first page in its prompt, from 1; 0: not known */
} pt_prompt_row;

/* The beginning of a response, whose pt_answers follow, and then the reason. */
typedef struct __attribute__((packed)) {
    uint8_t frame, unused;
    uint16_t reason_bytes;
    uint64_t number;
} pt_reserved_head;
_Static_assert((PT_LENGTH_BYTES + sizeof(pt_reserved_head)) % _Alignof(pt_answer) == 0,
               "the answers in a message are aligned if the message is");

typedef struct {
    pt_reserve_head head;
    const uint8_t *name, *prompts, *pages; /* in the message, of any alignment */
} pt_reserve_message;

static inline uint32_t pt_prompts_of(const pt_reserve_head *head)
{
    return head->prompts == PT_PROMPTS_UNKNOWN ? 0 : head->prompts;
}

/* Reads the body of a message, of exactly these bytes. Returns false if it is no reservation. */
static inline bool pt_read_reserve(const uint8_t *body, size_t bytes, pt_reserve_message *m)
{
    pt_reserve_head *h = &m->head;
    if (bytes < sizeof *h)
        return false;
    memcpy(h, body, sizeof *h);
    uint64_t prompts = pt_prompts_of(h) * (uint64_t)sizeof(pt_prompt_row);
    uint64_t pages = h->pages * (uint64_t)sizeof(pt_page_request);
    if (h->frame != PT_FRAME || bytes - sizeof *h != h->name_bytes + prompts + pages)
        return false;
    m->name = body + sizeof *h;
    m->prompts = m->name + h->name_bytes;
    m->pages = m->prompts + prompts;
    return true;
}

/* Reads a prompt, which refers to the message. */
static inline pt_prompt pt_read_prompt(const pt_reserve_message *m, uint32_t number)
{
    static const uint8_t none[PT_KEY_BYTES];
    const uint8_t *at = m->prompts + number * sizeof(pt_prompt_row);
    pt_prompt_row row;
    memcpy(&row, at, sizeof row);
    bool known = memcmp(row.parent, none, sizeof none);
    return (pt_prompt){
        .begin = row.begin,
        .parent = known ? at + offsetof(pt_prompt_row, parent) : NULL,
        .depth = row.depth < PT_MOST_SAID_DEPTH ? row.depth : PT_MOST_SAID_DEPTH,
    };
}

/* Reads the label of the namespace, and returns whether it is printable. The daemon replaces letters that a terminal
 * might interpret, see printable(). */
static inline bool pt_read_space(const pt_reserve_message *m, pt_space *space)
{
    const pt_reserve_head *h = &m->head;
    bool sound = true;
    *space = (pt_space){.used = 1, .first = PT_NONE, .page_tokens = h->page_tokens, .window = h->window,
                        .group = h->group};
    memcpy(space->digest, h->digest, PT_KEY_BYTES);
    memcpy(space->name, m->name, h->name_bytes < PT_NAME_BYTES ? h->name_bytes : PT_NAME_BYTES - 1);
    for (uint32_t i = 0; i < h->name_bytes; i++)
        sound &= m->name[i] >= 0x20 && m->name[i] <= 0x7e;
    return sound;
}

/* Reads the prompts, which refer to the message. Returns false if they do not divide the pages. A prompt of a request
 * without pages has none. */
static inline bool pt_read_prompts(const pt_reserve_message *m, pt_prompt *prompts)
{
    for (uint32_t i = 0; i < pt_prompts_of(&m->head); i++) {
        prompts[i] = pt_read_prompt(m, i);
        if (i ? prompts[i].begin <= prompts[i - 1].begin || prompts[i].begin >= m->head.pages : prompts[i].begin)
            return false;
    }
    return true;
}

/* Returns the bytes of a response without a reason. */
static inline size_t pt_reserved_bytes(uint32_t pages)
{
    return PT_LENGTH_BYTES + sizeof(pt_reserved_head) + sizeof(pt_answer) * (size_t)pages;
}

/* Writes the beginning of a response. Returns where its answers belong, behind which the reason follows. */
static inline pt_answer *pt_begin_reserved(uint8_t *response, uint64_t number, uint32_t pages, uint16_t reason_bytes)
{
    uint32_t length = (uint32_t)pt_reserved_bytes(pages) + reason_bytes - PT_LENGTH_BYTES;
    pt_reserved_head head = {PT_FRAME, 0, reason_bytes, number};
    memcpy(response, &length, PT_LENGTH_BYTES);
    memcpy(response + PT_LENGTH_BYTES, &head, sizeof head);
    return (pt_answer *)(void *)(response + PT_LENGTH_BYTES + sizeof head);
}
