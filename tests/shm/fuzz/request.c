/* request.c - the bytes of a peer's reservation, which the daemon reads in C. What is accepted lies inside the message,
 * and has a response of the size that was planned for it. */
#include "place.h"

#include "daemon/reserve_message.h"

typedef struct {
    uint8_t *at;
    size_t bytes;
} received;

static void expect_inside(const received *r, const char *what, const uint8_t *at, uint64_t bytes)
{
    if (at < r->at || bytes > r->bytes || (size_t)(at - r->at) > r->bytes - bytes)
        finding("%s of %lu bytes extend beyond a message of %zu bytes", what, bytes, r->bytes);
}

static void expect_request(const received *r, const pt_reserve_message *m)
{
    pt_space space;
    expect_inside(r, "name", m->name, m->head.name_bytes);
    expect_inside(r, "prompts", m->prompts, pt_prompts_of(&m->head) * (uint64_t)sizeof(pt_prompt_row));
    expect_inside(r, "pages", m->pages, m->head.pages * (uint64_t)sizeof(pt_page_request));
    pt_read_space(m, &space);
    if (strnlen(space.name, PT_NAME_BYTES) == PT_NAME_BYTES)
        finding("the name of %.56s has no end", space.name);
}

/* Expects that prompts that are accepted divide the pages, as pt_reserve() needs it. */
static void expect_prompts(const received *r, const pt_reserve_message *m)
{
    uint32_t count = pt_prompts_of(&m->head);
    pt_prompt *prompts = malloc((count + 1) * sizeof *prompts);
    if (pt_read_prompts(m, prompts))
        for (uint32_t i = 0; i < count; i++) {
            if (i ? prompts[i].begin <= prompts[i - 1].begin || prompts[i].begin >= m->head.pages : prompts[i].begin)
                finding("prompt %u of %u pages begins at page %u", i, m->head.pages, prompts[i].begin);
            if (prompts[i].parent)
                expect_inside(r, "the key before a prompt", prompts[i].parent, PT_KEY_BYTES);
        }
    free(prompts);
}

/* Writes the response to memory of exactly the planned size. */
static void respond(const pt_reserve_message *m)
{
    uint8_t *response = malloc(pt_reserved_bytes(m->head.pages));
    pt_answer *answers = pt_begin_reserved(response, m->head.number, m->head.pages, 0);
    memset(answers, 0, m->head.pages * sizeof *answers);
    if ((uint8_t *)(answers + m->head.pages) != response + pt_reserved_bytes(m->head.pages))
        finding("the response to %u pages has another size than planned", m->head.pages);
    free(response);
}

/* Changes the head of a message so that its lengths are right: changes of its other bytes are read then. */
static void correct(received *r)
{
    pt_reserve_head head;
    size_t rest = r->bytes - sizeof head;
    memcpy(&head, r->at, sizeof head);
    head.frame = PT_FRAME;
    if (head.prompts != PT_PROMPTS_UNKNOWN)
        head.prompts %= rest / sizeof(pt_prompt_row) + 1;
    rest -= pt_prompts_of(&head) * sizeof(pt_prompt_row);
    head.pages %= rest / sizeof(pt_page_request) + 1;
    head.name_bytes = (uint32_t)(rest - head.pages * sizeof(pt_page_request));
    memcpy(r->at, &head, sizeof head);
}

/* Reads a message in memory of exactly its size. Most have the right lengths. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    pt_reserve_message m;
    choices c = {data, bytes};
    bool right = !choose_one_in(&c, 4);
    received r = {malloc(c.left ? c.left : 1), c.left};
    memcpy(r.at, c.at, r.bytes);
    if (right && r.bytes >= sizeof(pt_reserve_head))
        correct(&r);
    if (pt_read_reserve(r.at, r.bytes, &m)) {
        expect_request(&r, &m);
        expect_prompts(&r, &m);
        respond(&m);
    }
    free(r.at);
    return 0;
}
