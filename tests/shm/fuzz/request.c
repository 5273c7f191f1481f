/* request.c - the bytes of a peer's reservation, which the daemon reads in C before its Python code decodes what is
 * left to it. What is accepted lies inside the message, and has a response of the size that was planned for it. */
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
    expect_inside(r, "keys", m->keys, (uint64_t)m->pages * PT_KEY_BYTES);
    expect_inside(r, "sizes", m->sizes, (uint64_t)m->pages * 8);
    if (m->prompt.parent)
        expect_inside(r, "the key before the prompt", m->prompt.parent, PT_KEY_BYTES);
    if (!m->request.parts || m->request.parts > PT_PARTS || m->request.part >= m->request.parts)
        finding("part %u of %u is accepted", m->request.part, m->request.parts);
    if (strnlen(m->space.name, PT_NAME_BYTES) == PT_NAME_BYTES)
        finding("the name of %.56s has no end", m->space.name);
}

/* Writes the response to memory of exactly the planned size. */
static void respond(const pt_reserve_message *m)
{
    uint64_t *sizes = malloc(8 * (size_t)m->pages);
    pt_answer *answers = calloc(m->pages, sizeof *answers);
    uint8_t *response = malloc(pt_reserved_bytes(m->pages));
    pt_read_sizes(m, sizes);
    pt_write_reserved(response, m->number, answers, m->pages);
    if (response[pt_reserved_bytes(m->pages) - 1] != 0xa0)
        finding("the response to %u pages has another size than planned", m->pages);
    free(sizes);
    free(answers);
    free(response);
}

/* Reads a message in memory of exactly its size. Most have the right length: changes
 * of their other bytes are read then. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    pt_reserve_message m;
    choices c = {data, bytes};
    bool right = !choose_one_in(&c, 16);
    received r = {malloc(c.left ? c.left : 1), c.left};
    uint32_t length = (uint32_t)r.bytes - PT_RESERVE_LENGTH_BYTES;
    memcpy(r.at, c.at, r.bytes);
    if (right && r.bytes >= PT_RESERVE_LENGTH_BYTES)
        memcpy(r.at, &length, sizeof length);
    if (pt_read_reserve(r.at, r.bytes, &m)) {
        expect_request(&r, &m);
        respond(&m);
    }
    free(r.at);
    return 0;
}
