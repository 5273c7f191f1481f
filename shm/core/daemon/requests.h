/* requests.h - a batch of stores or fetches, and the answer to each page. */
#pragma once

#include "owner.h"

enum pt_outcome {
    PT_GRANTED = 0,
    PT_PRESENT = 1,
    PT_PENDING = 2,
    PT_REFUSED_FULL = 3,
    PT_REFUSED_SIZE = 4,
    PT_ABSENT = 5,
    PT_LEFT_OUT = 6,
    PT_GRANTED_TO_FLEET = 7
};

/* How the pages of a store depend on each other, for the policy that learns when pages return (cadence/). */
enum pt_prompt_kind {
    /* a client that does not say: each page is useless without those before it, and perhaps without others */
    PT_PROMPT_UNKNOWN,
    PT_PROMPT_KNOWN, /* each page is useless without those before it */
    PT_PROMPT_NONE, /* each page is useful on its own: windows and recurrent states */
};

/* The place of a page in its prompt. */
typedef struct {
    uint32_t parent, life; /* the page before it, or PT_NONE, and its life then: while room is made, it may leave */
    uint8_t cadence; /* of the page before it */
    pt_said said; /* by the request */
    uint32_t depth; /* number of the page in its prompt, from 1; 0: not known */
} pt_place;

/* The pages of one prompt in a request: from `begin` to the next prompt. */
typedef struct {
    uint32_t begin;
    const uint8_t *parent; /* the key of the page before the first one; NULL: none, or not known */
    uint32_t depth; /* number of the first page in its prompt, from 1; 0: not known */
    pt_place place; /* of the first page; set by pt_reserve */
    uint32_t known; /* pages at its beginning; those after them are in no tier; set by pt_reserve, true until it
                     * grants or evicts the first page */
} pt_prompt;

typedef struct {
    uint32_t slot, space;
    uint32_t part, parts, division;
    uint64_t now, expires_ns;
    uint32_t reservation; /* the number for the pages that are granted */
    enum pt_prompt_kind prompt_kind; /* how the pages depend on each other */
    pt_prompt *prompts; /* ascending from page 0; NULL: one prompt, and the page before it is not known */
    uint32_t prompt_count;
    uint8_t hint, lasts; /* what is known of the session of all pages, as in pt_said */
    bool keep; /* the pages are to be kept: none is left out */
    uint32_t refused; /* pages after those of the batch that are refused: they only count as missed (mrc/missed.h) */
} pt_request;

/* What a message asks of one page. A row has no padding, so that no byte of it is undefined. */
typedef struct {
    uint8_t key[PT_KEY_BYTES];
    uint64_t size;
} pt_page_request;

/* The answer to one page, and a row of the message with all answers. */
typedef struct {
    enum pt_outcome outcome;
    uint32_t entry;
    uint64_t serial;
} pt_answer;
_Static_assert(sizeof(pt_answer) == 16 && sizeof(pt_page_request) == PT_KEY_BYTES + 8, "rows have no padding");

static inline pt_answer pt_answer_with(pt_owner *o, enum pt_outcome outcome, uint32_t entry)
{
    return (pt_answer){outcome, entry, entry == PT_NONE ? 0 : o->view.entries[entry].serial};
}
