/* copy.h - copies bytes between the frames of a page and plain memory, on a
 * few threads of the calling process. */
#pragma once

#include <pthread.h>

#include "../common/view.h"

#define PT_LINE 64u /* bytes of a cache line */

/* Copies whole cache lines past the caches: memory that is completely overwritten need not be read first. `to` begins a
 * line. pt_copy_fence must come before the release that publishes the page. */
#if defined __x86_64__ && !defined PT_SANITIZED /* sanitizers do not see these stores */
#include <immintrin.h>

/* registers that are loaded before they are stored: in turn, rows were loaded at 1.4 of memcpy's speed */
#define PT_WIDE 8

__attribute__((target("avx2"))) static inline void pt_stream_wide(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (; bytes >= PT_WIDE * sizeof(__m256i); bytes -= PT_WIDE * sizeof(__m256i)) {
        __m256i some[PT_WIDE];
        for (int i = 0; i < PT_WIDE; i++, from += sizeof some[0])
            some[i] = _mm256_loadu_si256((const __m256i *)from);
        for (int i = 0; i < PT_WIDE; i++, to += sizeof some[0])
            _mm256_stream_si256((__m256i *)to, some[i]);
    }
    for (; bytes; bytes -= sizeof(__m256i), from += sizeof(__m256i), to += sizeof(__m256i))
        _mm256_stream_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
}

static inline void pt_stream_lines(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (__builtin_cpu_supports("avx2")) {
        pt_stream_wide(to, from, bytes);
        return;
    }
    for (uint64_t at = 0; at < bytes; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
}
static inline void pt_copy_fence(void) { _mm_sfence(); }
#else
#define pt_stream_lines memcpy
static inline void pt_copy_fence(void) {}
#endif

/* Copies a range past the caches, except for short ones that are not whole cache lines: a line that is
 * written in part is read first in any case. On an AMD EPYC, rows of 256 bytes were stored at 1.7 of memcpy's
 * speed and loaded at 1.6, with ordinary stores at 1.1 and 0.97; a load and a first read of what was loaded
 * took no longer at any size from 0.5 MiB. */
static inline void pt_copy_bytes(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    uint64_t before = -(uintptr_t)to % PT_LINE;
    if (bytes < PT_PAGE && (before || bytes % PT_LINE)) {
        memcpy(to, from, bytes);
        return;
    }
    uint64_t after = (bytes - before) % PT_LINE;
    memcpy(to, from, before);
    pt_stream_lines(to + before, from + before, bytes - before - after);
    memcpy(to + bytes - after, from + bytes - after, after);
}

enum pt_direction { PT_OUT_OF_ARENA, PT_INTO_ARENA };

/* One page to copy: `bytes` bytes of it, starting at `offset`, and their address in plain memory. */
typedef struct {
    uint32_t entry;
    uint8_t *memory;
    uint64_t offset, bytes;
} pt_job;

#define PT_COPY_THREADS 16u
#ifndef PT_COPY_SHARE /* tests have less to copy */
#define PT_COPY_SHARE (2u << 20) /* bytes that are worth one more thread */
#endif

/* Returns whether the entry has a page of `size` bytes whose list of frames is complete and lies inside
 * the arena. Each link is checked, because a damaged index may cost a page but must not crash the
 * process. Writes the frames to `frames` unless it is NULL; it has room for pt_frames_for(v, size). The
 * caller has the entry pinned or was granted it. */
static inline bool pt_frame_list_read(const pt_view *v, uint32_t entry, uint64_t size, uint32_t *frames)
{
    const pt_entry *e = &v->entries[entry];
    uint32_t frame = e->first_frame, left = pt_frames_for(v, size);
    if (size > (uint64_t)v->frame_count * v->frame_bytes || e->size != size || e->frame_count != left)
        return false;
    for (; left && frame < v->frame_count && v->frames[frame].owner == entry; left--) {
        if (frames)
            *frames++ = frame;
        frame = v->frames[frame].next;
    }
    return !left;
}

static inline bool pt_frame_list_holds(const pt_view *v, uint32_t entry)
{
    return pt_frame_list_read(v, entry, v->entries[entry].size, NULL);
}

/* Returns whether the job lies within its page. The caller has the entry pinned or was granted it. */
static inline bool pt_job_fits(const pt_view *v, const pt_job *job)
{
    if (job->entry >= v->entry_count || !pt_frame_list_holds(v, job->entry))
        return false;
    uint64_t size = v->entries[job->entry].size;
    return job->bytes <= size && job->offset <= size - job->bytes;
}

/* Returns whether the job covers the whole page. The caller has the entry pinned. */
static inline bool pt_job_is_whole(const pt_view *v, const pt_job *job)
{
    return pt_job_fits(v, job) && job->bytes == v->entries[job->entry].size;
}

/* Copies bytes [from, to) of a page; job->memory is the address of byte job->offset. The
 * caller guarantees pt_frame_list_holds. */
static inline void pt_copy_range(const pt_view *v, const pt_job *job, enum pt_direction way, uint64_t from, uint64_t to)
{
    uint32_t frame = v->entries[job->entry].first_frame;
    uint64_t at = 0;
    for (; from < to; at += v->frame_bytes, frame = v->frames[frame].next) {
        if (at + v->frame_bytes <= from)
            continue;
        uint64_t end = at + v->frame_bytes < to ? at + v->frame_bytes : to;
        uint8_t *inside = v->arena + frame * v->frame_bytes + (from - at);
        uint8_t *memory = job->memory + (from - job->offset);
        if (way == PT_OUT_OF_ARENA)
            pt_copy_bytes(memory, inside, end - from);
        else
            pt_copy_bytes(inside, memory, end - from);
        PT_POINT("copy.piece");
        from = end;
    }
}

/* A share of the bytes of all jobs, as if they were laid end to end. */
typedef struct {
    const pt_view *view;
    const pt_job *jobs;
    uint32_t count;
    enum pt_direction way;
    uint64_t from, to;
} pt_share;

static void *pt_copy_share(void *given)
{
    const pt_share *share = given;
    uint64_t start = 0;
    for (uint32_t i = 0; i < share->count && start < share->to; start += share->jobs[i++].bytes) {
        uint64_t end = start + share->jobs[i].bytes;
        uint64_t from = share->from > start ? share->from : start, to = share->to < end ? share->to : end;
        if (from < to)
            pt_copy_range(share->view, &share->jobs[i], share->way, share->jobs[i].offset + from - start,
                          share->jobs[i].offset + to - start);
    }
    pt_copy_fence();
    return NULL;
}

/* Returns how many of `threads` threads are worthwhile for so many bytes, at least one. */
static inline uint32_t pt_copy_threads(uint64_t bytes, uint32_t threads)
{
    if (threads > PT_COPY_THREADS)
        threads = PT_COPY_THREADS;
    if (threads > bytes / PT_COPY_SHARE)
        threads = (uint32_t)(bytes / PT_COPY_SHARE);
    return threads ? threads : 1;
}

/* Calls work(shares + t * step) for each t < threads, on new threads and on the calling one. Shares for which no thread
 * could be created are done by the calling thread, too. */
static inline void pt_on_threads(void *(*work)(void *), void *shares, size_t step, uint32_t threads)
{
    pthread_t helpers[PT_COPY_THREADS];
    bool started[PT_COPY_THREADS] = {false};
    for (uint32_t t = 1; t < threads; t++)
        started[t] = pthread_create(&helpers[t], NULL, work, (uint8_t *)shares + t * step) == 0;
    work(shares);
    for (uint32_t t = 1; t < threads; t++) {
        if (started[t])
            pthread_join(helpers[t], NULL);
        else
            work((uint8_t *)shares + t * step);
    }
}

/* Copies all jobs on up to `threads` threads, including the calling one; on fewer if threads cannot be created. */
static inline void pt_copy(const pt_view *v, const pt_job *jobs, uint32_t count, enum pt_direction way,
                           uint32_t threads)
{
    uint64_t total = 0, step;
    pt_share shares[PT_COPY_THREADS];
    for (uint32_t i = 0; i < count; i++)
        total += jobs[i].bytes;
    threads = pt_copy_threads(total, threads);
    step = (total / threads + 63) / 64 * 64;
    for (uint32_t t = 0; t < threads; t++) {
        uint64_t from = t * step < total ? t * step : total;
        uint64_t to = t + 1 == threads || from + step >= total ? total : from + step;
        shares[t] = (pt_share){v, jobs, count, way, from, to};
    }
    pt_on_threads(pt_copy_share, shares, sizeof shares[0], threads);
}
