/* records.c - records of pages as a disk returns them, damaged or not. Nothing outside of a record is read, a claim
 * that is accepted has the slots that its page needs and no other ones, and a hash does not depend on where its pieces
 * meet. */
#define FINDING_END() abort()

#include "report.h"
#include "choices.h"

#include "daemon/disk_records.h"

#define SLOTS 40u
#define SLOT_BYTES 4096u
#define MOST_RECORDS 6u
#define MOST_EXTENTS 40u /* so that hashes of all lengths occur */

/* Chooses the head of a record that needs so many slots, mostly. */
static pt_disk_record_head choose_head(choices *c, uint64_t slots)
{
    uint64_t bytes = slots * SLOT_BYTES - choose(c, SLOT_BYTES);
    pt_disk_record_head head = {.format = (uint8_t)choose(c, 5), .codec = (uint8_t)choose(c, 3),
                                .space = (uint32_t)choose_odd(c), .serial = UINT32_MAX - 4ul + choose(c, 8)};
    head.size = choose_one_in(c, 8) ? choose_odd(c) : bytes;
    head.coded = choose_one_in(c, 3) ? choose_odd(c) : choose_one_in(c, 2) ? bytes : 0;
    return head;
}

/* Chooses extents in memory for MOST_EXTENTS of them. Returns how many slots they have. */
static uint64_t choose_extents(choices *c, pt_disk_extent *extents, uint32_t count)
{
    uint64_t slots = 0;
    for (uint32_t i = 0; i < count; i++) {
        extents[i].first = choose_one_in(c, 8) ? (uint32_t)choose_odd(c) : choose(c, SLOTS + 1);
        extents[i].frames = choose_one_in(c, 16) ? (uint32_t)choose_odd(c) : choose(c, 4);
        slots += extents[i].frames;
    }
    return slots;
}

/* Gives a record its hash, as if it had been written like that. */
static void sign(pt_disk_record *r, uint8_t *value)
{
    size_t bytes = r->value_bytes - PT_CHECK_BYTES;
    uint64_t hash = __builtin_bswap64(pt_xxh3(&(pt_hashed){r->key, value, r->key_bytes, bytes}));
    memcpy(value + bytes, &hash, sizeof hash);
}

static uint8_t *exactly(const void *bytes, size_t count)
{
    uint8_t *copy = malloc(count ? count : 1);
    memcpy(copy, bytes, count);
    return copy;
}

/* Chooses a record in memory of exactly its size. */
static pt_disk_record new_record(choices *c)
{
    uint8_t key[PT_KEY_BYTES + 1], value[sizeof(pt_disk_record_head) + 8 * MOST_EXTENTS + PT_CHECK_BYTES] = {0};
    pt_disk_extent extents[MOST_EXTENTS];
    uint32_t count = choose_one_in(c, 4) ? choose(c, MOST_EXTENTS + 1) : choose(c, 4);
    pt_disk_record_head head = choose_head(c, choose_extents(c, extents, count));
    size_t begin = head.format == PT_OLD_RECORD ? PT_OLD_HEAD_BYTES : sizeof head, bytes = begin + 8 * count;
    memset(key, choose_byte(c), sizeof key);
    memcpy(value, &head, begin);
    memcpy(value + begin, extents, 8 * count);
    bytes += choose_one_in(c, 4) ? 0 : PT_CHECK_BYTES;
    if (choose_one_in(c, 4))
        bytes = choose_one_in(c, 2) ? choose(c, (uint32_t)bytes) : 8 * choose(c, (uint32_t)bytes / 8);
    size_t key_bytes = choose_one_in(c, 8) ? choose(c, sizeof key) : PT_KEY_BYTES;
    uint8_t *exact = exactly(value, bytes);
    pt_disk_record r = {exactly(key, key_bytes), exact, key_bytes, bytes};
    if (bytes >= PT_CHECK_BYTES && key_bytes + bytes >= PT_XXH3_LEAST + PT_CHECK_BYTES && !choose_one_in(c, 8))
        sign(&r, exact);
    return r;
}

static void expect_stored(choices *c, const pt_disk_record *r)
{
    pt_record_limits limits = {2 + choose(c, 2), SLOTS * SLOT_BYTES, choose_one_in(c, 8) ? 0 : SLOT_BYTES};
    pt_stored_page page;
    if (pt_read_stored(r, &limits, &page) && (!page.size || page.size > limits.largest_page))
        finding("a page of %lu bytes was accepted", page.size);
}

static void expect_frames(const pt_disk_record *r)
{
    uint64_t frames = 0, size = 0;
    if (!pt_add_frames(r, SLOT_BYTES, &frames))
        return;
    memcpy(&size, r->value + 8, sizeof size);
    if (frames != size / SLOT_BYTES + (size % SLOT_BYTES > 0))
        finding("a page of %lu bytes has %lu frames", size, frames);
}

/* Expects that all slots of a claim exist, and have the writer that took them. */
static void expect_owned(const uint32_t *owners, const pt_claim *claim)
{
    uint64_t slots = 0;
    for (size_t i = 0; i < claim->slots.count; i++) {
        pt_disk_extent extent = pt_extent_at(&claim->slots, i);
        for (uint32_t at = 0; at < extent.frames; at++, slots++)
            if (owners[extent.first + at] != claim->mark)
                finding("a slot of write %lu belongs to write %u", claim->serial, owners[extent.first + at]);
    }
    if (slots != claim->slots.frames)
        finding("write %lu has %lu slots instead of %lu", claim->serial, slots, claim->slots.frames);
}

static void expect_claim(const pt_disk_record *r, uint32_t *owners)
{
    pt_claim claim;
    uint32_t before[SLOTS];
    memcpy(before, owners, sizeof before);
    pt_prefetch_owners(r, owners, SLOTS);
    if (pt_read_claim(r, SLOT_BYTES, SLOTS, &claim) != PT_CLAIM_VALID)
        return;
    if (!pt_take_free(owners, &claim)) {
        if (memcmp(before, owners, sizeof before))
            finding("write %lu has taken some of its slots, and others are not free", claim.serial);
        if (pt_is_newer(pt_newest_owner(owners, &claim), claim.mark))
            return;
        pt_take_slots(owners, &claim);
    } else if (pt_newest_owner(before, &claim))
        finding("write %lu has taken slots of others", claim.serial);
    expect_owned(owners, &claim);
}

static void expect_hash(choices *c, const pt_disk_record *r)
{
    size_t bytes = r->key_bytes + r->value_bytes, other = choose(c, (uint32_t)bytes + 1);
    uint8_t *whole = malloc(bytes + 1);
    memcpy(whole, r->key, r->key_bytes);
    memcpy(whole + r->key_bytes, r->value, r->value_bytes);
    if (bytes >= PT_XXH3_LEAST && pt_xxh3(&(pt_hashed){r->key, r->value, r->key_bytes, r->value_bytes}) !=
                                      pt_xxh3(&(pt_hashed){whole, whole + other, other, bytes - other}))
        finding("%zu bytes have two hashes", bytes);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    choices c = {data, size};
    uint32_t *owners = calloc(SLOTS, sizeof *owners);
    for (uint32_t count = 1 + choose(&c, MOST_RECORDS); count; count--) {
        pt_disk_record r = new_record(&c);
        expect_stored(&c, &r);
        expect_frames(&r);
        expect_claim(&r, owners);
        expect_hash(&c, &r);
        free((void *)(uintptr_t)r.key), free((void *)(uintptr_t)r.value);
    }
    free(owners);
    return 0;
}
