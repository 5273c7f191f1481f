/* cost.c - what a store and an eviction cost the daemon, in CPU time by page. */
#include "small_index.h"

#include "core/daemon/quotas.h"

enum { PROMPT = 64, RETURNING = 8 }; /* pages of a prompt; of so many prompts, one returns and grows */
#define STEP_NS 1000000ull /* of the clock, from prompt to prompt */

typedef struct {
    double store; /* into free memory */
    double replace; /* a store that needs the room of another page */
    double evict; /* ahead of need */
    /* a store that needs the room of another page, where most pages are older and protected by a quota */
    double beside;
} costs; /* seconds by page */

typedef struct {
    pt_owner owner;
    uint64_t now, stored;
    int32_t next;
    uint32_t space;
    double seconds;
} work;

/* Stores the pages of a prompt, the first of which has the number `first`. */
static void store(work *w, int32_t first, uint32_t count)
{
    uint8_t keys[2 * PROMPT * PT_KEY_BYTES];
    uint64_t sizes[2 * PROMPT];
    pt_answer answers[2 * PROMPT];
    pt_prompt prompt = {0};
    for (uint32_t i = 0; i < count; i++) {
        key_of(first + (int32_t)i, keys + i * PT_KEY_BYTES);
        sizes[i] = 4096;
    }
    w->now += STEP_NS;
    pt_request r = {.space = w->space,
                    .parts = 1,
                    .prompt_kind = PT_PROMPT_KNOWN,
                    .now = w->now,
                    .expires_ns = UINT64_MAX,
                    .reservation = 1,
                    .prompts = &prompt,
                    .prompt_count = 1};
    double began = thread_seconds();
    pt_reserve(&w->owner, &r, keys, sizes, count, answers);
    w->seconds += thread_seconds() - began;
    for (uint32_t i = 0; i < count; i++) {
        w->stored += answers[i].outcome == PT_GRANTED;
        if (answers[i].outcome == PT_GRANTED)
            pt_part_finish(&w->owner.view, answers[i].entry, 0);
    }
}

/* Stores so many new prompts. Returns the seconds by page. */
static double store_prompts(work *w, uint32_t prompts)
{
    w->seconds = 0, w->stored = 0;
    for (uint32_t i = 0; i < prompts; i++, w->next += 2 * PROMPT) {
        bool returns = i % RETURNING == 0 && w->next;
        store(w, returns ? w->next - 2 * PROMPT : w->next, returns ? 2 * PROMPT : PROMPT);
    }
    return w->seconds / (double)(w->stored ? w->stored : 1);
}

static double evict_some(work *w, uint32_t pages)
{
    uint32_t frames = w->owner.view.header->free_frames + pages;
    double began = thread_seconds();
    uint32_t evicted = pt_evict_until(&w->owner, frames, pages, w->now += STEP_NS);
    return (thread_seconds() - began) / (evicted ? evicted : 1);
}

/* Measures stores beside the pages of a tenant that has its minimum, three fifths of the
 * memory. Returns -1 if memory is short. */
static double beside_protected(uint32_t pages, bool learns)
{
    work w = {.now = 1000000000000ull, .space = 1};
    const pt_quota quotas[] = {PT_NO_QUOTA, {{0.6, 1}, {0, 1}}};
    if (!open_index(&w.owner, pages, learns) || !pt_set_quotas(&w.owner, quotas, 2, (uint8_t[]){0, 1, 0, 0}, w.now))
        return -1;
    w.owner.view.spaces[1].used = 1;
    store_prompts(&w, pages / PROMPT * 3 / 5);
    w.space = 0;
    store_prompts(&w, pages / PROMPT);
    double seconds = store_prompts(&w, pages / PROMPT);
    close_index(&w.owner);
    return seconds;
}

/* Measures an index of `pages` pages. Returns 0, or -1 if memory is short. */
int cost(uint32_t pages, int learns, costs *out)
{
    work w = {.now = 1000000000000ull};
    if (!open_index(&w.owner, pages, learns))
        return -1;
    out->store = store_prompts(&w, pages / PROMPT * 4 / 5);
    store_prompts(&w, pages / PROMPT); /* it learns */
    out->replace = store_prompts(&w, pages / PROMPT);
    pt_settle_all(&w.owner, w.now);
    out->evict = evict_some(&w, pages / 4);
    close_index(&w.owner);
    out->beside = beside_protected(pages, learns);
    return out->beside < 0 ? -1 : 0;
}
