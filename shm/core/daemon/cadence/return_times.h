/* return_times.h - when pages return: for each class of pages, how likely a use is at each age, learned from what
 * happened.
 *
 * A class is how quickly the page returned so far (its cadence), how often it was used, how many pages its request
 * appended, and what an engine said of its session (a hint). Ages are in seconds, in bins of half an octave. For each
 * class and bin the table has the uses and the time that pages were at risk of a use; their ratio is the hazard. From
 * the hazards it derives the Gittins index: the best rate of uses per second of memory that a page of this class and
 * age still promises (Gittins 1979; Aalto, Ayesta and Righter 2009). The page with the lowest index leaves first.
 *
 * Few observations are shrunk towards the whole: all pages, then those with the same hint, then their cadence, then the
 * product of the factors for uses and growth, then the class. So a hint counts as far as it was right before. Bins far
 * below the usual gap are one bin, so that a burst of requests at one moment does not look like a high rate. As the
 * cadence and that limit are relative to the usual gap, a faster or slower load has the same classes and the same
 * order. Ages that no page has had for long count as never observed. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* What is known of a page's session. */
enum pt_hint {
    PT_HINT_NONE,
    PT_HINT_OVER, /* it does not return */
    PT_HINT_WITHIN_20, /* it returns within so many seconds */
    PT_HINT_WITHIN_60,
    PT_HINT_WITHIN_300,
    PT_HINT_LATER, /* it returns after that */
    PT_HINTS,
    PT_HINT_KEEP = PT_HINTS, /* pages of value, however they return (keeps.h); no dimension of a class */
    PT_HINT_UNKEEP, /* the end of that */
};

enum {
    PT_AGES = 64,
    PT_CADENCES = 9, /* 0: not known */
    PT_USE_COUNTS = 3, /* 1; 2 to 4; 5 and more */
    PT_GROWTHS = 3, /* a request of up to 3, up to 15, more new pages */
    PT_HINTED_CLASSES = PT_CADENCES * PT_USE_COUNTS * PT_GROWTHS, /* of pages with one hint */
    PT_CLASSES = PT_HINTED_CLASSES * PT_HINTS,
    PT_GROUPS_OF_CLASSES = PT_CADENCES * PT_HINTS, /* by hint and cadence */
    PT_LEVELLED = 12, /* bins: those this far below the usual gap are one */
};
#define PT_AGE_BASE (1.0f / 1024) /* seconds: the end of the first bin; the last one begins after 24 days */
#define PT_DECAY 0.995f /* of what was observed, at each update of the index */
#define PT_STEADY 10000u /* gaps in the average of all */
#define PT_TRUST 4.0 /* uses that count as much as the prior of a bin */
#define PT_TRUST_FACTOR 30.0 /* uses that count as much as the prior of a factor */

typedef struct {
    float uses[PT_CLASSES][PT_AGES], risk[PT_CLASSES][PT_AGES]; /* risk in seconds */
    float index[PT_CLASSES][PT_AGES]; /* uses per second */
    float from[PT_AGES + 1]; /* the ages at which the bins begin */
    float usual; /* moving average of the bins of all gaps */
    uint32_t gaps; /* at most PT_STEADY */
    float complete; /* up to this age the time at risk is added up */
    bool hinted[PT_HINTS]; /* pages with this hint were observed */
} pt_returns;

static inline void pt_returns_begin(pt_returns *t)
{
    *t = (pt_returns){0};
    for (int bin = 1; bin <= PT_AGES; bin++)
        t->from[bin] = PT_AGE_BASE * exp2f((float)(bin - 1) / 2);
}

/* Returns the bin of an age, from the bits of the float: twice the exponent, plus one from the square root of 2 on. */
static inline int pt_age_bin(float age)
{
    union {
        float value;
        uint32_t bits;
    } x = {age / PT_AGE_BASE};
    if (!(x.value >= 1))
        return 0;
    int bin = 2 * ((int)(x.bits >> 23) - 127) + ((x.bits & 0x7fffff) >= 0x3504f3) + 1;
    return bin < PT_AGES ? bin : PT_AGES - 1;
}

/* Adds a gap to the average of all. Gaps too short to be measured do not count, so that a faster load has
 * the same average on a shorter scale. */
static inline void pt_note_gap(pt_returns *t, float gap)
{
    int bin = pt_age_bin(gap);
    if (!bin)
        return;
    t->gaps += t->gaps < PT_STEADY;
    t->usual += ((float)bin - t->usual) / (float)t->gaps;
}

/* Returns the cadence after a gap: the average of the old one and the gap's bin, which is limited to a range around the
 * usual gap. 0 is an unknown cadence. */
static inline uint8_t pt_cadence_after(const pt_returns *t, uint8_t old, float gap)
{
    int bin = pt_age_bin(gap), low = (int)t->usual - 2, high = (int)t->usual + 15;
    bin = bin < low ? low : bin > high ? high : bin;
    bin = bin < 1 ? 1 : bin < PT_AGES ? bin : PT_AGES - 1;
    return (uint8_t)(old ? (old + bin + 1) / 2 : bin);
}

static inline uint16_t pt_class_of(const pt_returns *t, uint8_t cadence, uint8_t uses, uint8_t growth,
                                   enum pt_hint hint)
{
    int step = cadence ? (int)floorf(((float)cadence - t->usual) / 2 + 2) : 0;
    step = !cadence ? 0 : step < 1 ? 1 : step < PT_CADENCES ? step : PT_CADENCES - 1;
    int count = uses <= 1 ? 0 : uses <= 4 ? 1 : 2;
    return (uint16_t)(((hint * PT_CADENCES + step) * PT_USE_COUNTS + count) * PT_GROWTHS + growth);
}

static inline enum pt_hint pt_hint_of_class(int class) { return (enum pt_hint)(class / PT_HINTED_CLASSES); }

/* Returns the class of a page like one of this class, but with another hint. */
static inline uint16_t pt_class_with(uint16_t class, enum pt_hint hint)
{
    return (uint16_t)(class % PT_HINTED_CLASSES + hint * PT_HINTED_CLASSES);
}

static inline uint8_t pt_growth_of(uint32_t appended) { return appended <= 3 ? 0 : appended <= 15 ? 1 : 2; }

/* Records that `weight` pages of a class were at risk between two ages. */
static inline void pt_note_risk(pt_returns *t, uint16_t class, float since, float until, float weight)
{
    if (!(until > since))
        return;
    t->hinted[pt_hint_of_class(class)] = true;
    for (int bin = pt_age_bin(since), last = pt_age_bin(until); bin <= last; bin++) {
        float low = t->from[bin] > since ? t->from[bin] : since;
        float high = bin == last ? until : t->from[bin + 1];
        t->risk[class][bin] += high > low ? weight * (high - low) : 0;
    }
}

static inline void pt_note_return(pt_returns *t, uint16_t class, float age, float weight)
{
    t->hinted[pt_hint_of_class(class)] = true;
    t->uses[class][pt_age_bin(age)] += weight;
}

/* ---- the index ---- */

typedef struct {
    double uses, risk;
} pt_observed;

/* Returns what was observed in a bin and, with half the weight, in its neighbours. */
static inline pt_observed pt_smoothed(const float *uses, const float *risk, int first, int last, int bin)
{
    if (bin > last)
        return (pt_observed){0};
    pt_observed sum = {uses[bin], risk[bin]};
    for (int other = bin - 1; other <= bin + 1; other += 2)
        if (other >= first && other <= last) {
            sum.uses += uses[other] / 2;
            sum.risk += risk[other] / 2;
        }
    return sum;
}

typedef struct {
    float uses[PT_AGES], risk[PT_AGES];
    double hazard[PT_AGES];
} pt_level;

typedef struct {
    int first, last; /* all bins up to the first one are one; bins after the last one are not observed yet */
    pt_level all, hints[PT_HINTS], groups[PT_GROUPS_OF_CLASSES];
    double expected[PT_CLASSES], observed[PT_CLASSES]; /* uses, by the hazards of the group */
    double by_count[PT_USE_COUNTS], by_growth[PT_GROWTHS]; /* factors */
} pt_estimate;

static inline int pt_group_of_class(int class) { return class / (PT_USE_COUNTS * PT_GROWTHS); }
static inline int pt_count_of_class(int class) { return class / PT_GROWTHS % PT_USE_COUNTS; }
static inline int pt_growth_of_class(int class) { return class % PT_GROWTHS; }

/* Returns the class after this one of which pages were observed. */
static inline int pt_next_class(const pt_returns *t, int class)
{
    class++;
    while (class < PT_CLASSES && !t->hinted[pt_hint_of_class(class)])
        class += PT_HINTED_CLASSES;
    return class;
}

static inline void pt_level_bins(pt_returns *t, int first)
{
    for (int class = 0; class < PT_CLASSES; class = pt_next_class(t, class))
        for (int bin = 0; bin < first; bin++) {
            t->uses[class][first] += t->uses[class][bin];
            t->risk[class][first] += t->risk[class][bin];
            t->uses[class][bin] = t->risk[class][bin] = 0;
        }
}

static inline void pt_sum_levels(const pt_returns *t, pt_estimate *e)
{
    for (int class = 0; class < PT_CLASSES; class = pt_next_class(t, class)) {
        pt_level *levels[] = {&e->all, &e->hints[pt_hint_of_class(class)], &e->groups[pt_group_of_class(class)]};
        for (int i = 0; i < 3; i++)
            for (int bin = e->first; bin < PT_AGES; bin++) {
                levels[i]->uses[bin] += t->uses[class][bin];
                levels[i]->risk[bin] += t->risk[class][bin];
            }
    }
}

/* The hazards of all pages. Where nothing was observed, they fall with the age. */
static inline void pt_hazards_of_all(const pt_returns *t, pt_estimate *e)
{
    double before = 1 / t->from[(int)t->usual + 1];
    for (int bin = e->first; bin < PT_AGES; bin++) {
        pt_observed seen = pt_smoothed(e->all.uses, e->all.risk, e->first, e->last, bin);
        double prior = before * (bin > e->first + 8 ? 0.75 : 1);
        before = e->all.hazard[bin] = (seen.uses + 3) / (seen.risk + 3 / prior);
    }
}

/* Returns the uses that the hazards predict for a time at risk. */
static inline double pt_predicted(const float *risk, const double *hazard, int first)
{
    double sum = 0;
    for (int bin = first; bin < PT_AGES; bin++)
        sum += risk[bin] * hazard[bin];
    return sum;
}

static inline double pt_sum_bins(const float *values, int first)
{
    double sum = 0;
    for (int bin = first; bin < PT_AGES; bin++)
        sum += values[bin];
    return sum;
}

/* Derives hazards from observations, shrunk towards `scale` times those of a larger group. */
static inline void pt_shrink(const float *uses, const float *risk, const double *prior, double scale, int first,
                             int last, double *hazard)
{
    for (int bin = first; bin < PT_AGES; bin++) {
        pt_observed seen = pt_smoothed(uses, risk, first, last, bin);
        hazard[bin] = (seen.uses + scale * PT_TRUST) / (seen.risk + PT_TRUST / prior[bin]);
    }
}

/* Derives the hazards of a level, shrunk towards those of the level above. */
static inline void pt_hazards_below(const pt_estimate *e, const double *above, pt_level *level)
{
    double seen = pt_sum_bins(level->uses, e->first), predicted = pt_predicted(level->risk, above, e->first);
    double scale = (seen + PT_TRUST_FACTOR) / (predicted + PT_TRUST_FACTOR);
    pt_shrink(level->uses, level->risk, above, scale, e->first, e->last, level->hazard);
}

/* Derives the hazards by hint, and by hint and cadence. Without hints, all pages have the same. */
static inline void pt_hazards_of_groups(const pt_returns *t, pt_estimate *e)
{
    bool alike = pt_next_class(t, PT_HINTED_CLASSES - 1) >= PT_CLASSES;
    for (int hint = 0; hint < PT_HINTS; hint++) {
        if (alike && hint == PT_HINT_NONE)
            e->hints[hint] = e->all;
        else if (t->hinted[hint] || hint == PT_HINT_NONE)
            pt_hazards_below(e, e->all.hazard, &e->hints[hint]);
        else
            continue;
        for (int group = hint * PT_CADENCES; group < (hint + 1) * PT_CADENCES; group++)
            pt_hazards_below(e, e->hints[hint].hazard, &e->groups[group]);
    }
}

typedef int pt_part_of_class(int class);

/* Fits one row of factors to the observations while the other row stays. */
static inline void pt_fit(const pt_estimate *e, double *factors, int count, pt_part_of_class *mine,
                          const double *others, pt_part_of_class *theirs)
{
    double seen[3] = {0}, predicted[3] = {0};
    for (int class = 0; class < PT_CLASSES; class++) {
        seen[mine(class)] += e->observed[class];
        predicted[mine(class)] += e->expected[class] * others[theirs(class)];
    }
    for (int i = 0; i < count; i++)
        factors[i] = (seen[i] + PT_TRUST_FACTOR) / (predicted[i] + PT_TRUST_FACTOR);
}

static inline void pt_fit_factors(const pt_returns *t, pt_estimate *e)
{
    for (int class = 0; class < PT_CLASSES; class = pt_next_class(t, class)) {
        e->expected[class] = pt_predicted(t->risk[class], e->groups[pt_group_of_class(class)].hazard, e->first);
        e->observed[class] = pt_sum_bins(t->uses[class], e->first);
    }
    for (int i = 0; i < 3; i++)
        e->by_count[i] = e->by_growth[i] = 1;
    for (int round = 0; round < 4; round++) {
        pt_fit(e, e->by_count, PT_USE_COUNTS, pt_count_of_class, e->by_growth, pt_growth_of_class);
        pt_fit(e, e->by_growth, PT_GROWTHS, pt_growth_of_class, e->by_count, pt_count_of_class);
    }
}

/* Stores the Gittins index of each bin: the largest ratio of the probability of a use to the expected time in memory,
 * over all times until which the page could be kept. */
static inline void pt_gittins(const pt_returns *t, const double *hazard, int first, float *index)
{
    double use[PT_AGES], held[PT_AGES], later = 0;
    double most[PT_AGES]; /* the largest ratio of this bin and those after it */
    for (int bin = PT_AGES - 1; bin >= first; bin--) {
        double width = t->from[bin + 1] - (bin == first ? 0 : t->from[bin]);
        use[bin] = 1 - exp(-hazard[bin] * width);
        held[bin] = hazard[bin] > 1e-12 ? use[bin] / hazard[bin] : width;
        later = most[bin] = fmax(later, use[bin] / held[bin]);
    }
    for (int bin = first; bin < PT_AGES; bin++) {
        double alive = 1, uses = 0, time = 0, best = 0;
        /* Where no bin that is left has a better ratio, no longer time has. The factor is for rounding. */
        for (int until = bin; until < PT_AGES && alive >= 1e-3 && most[until] > best * (1 - 1e-9); until++) {
            uses += alive * use[until];
            time += alive * held[until];
            alive *= 1 - use[until];
            best = uses > best * time ? uses / time : best;
        }
        index[bin] = (float)best;
    }
    for (int bin = 0; bin < first; bin++)
        index[bin] = index[first];
}

/* Gives the classes of hints that were not given yet the index of pages without a hint. */
static inline void pt_index_of_unknown_hints(pt_returns *t)
{
    for (int hint = PT_HINT_NONE + 1; hint < PT_HINTS; hint++)
        if (!t->hinted[hint])
            memcpy(t->index[hint * PT_HINTED_CLASSES], t->index[0], PT_HINTED_CLASSES * sizeof t->index[0]);
}

/* Derives the index from what was observed, and lets old observations fade. Takes about a third of a millisecond,
 * and as much again for each hint in use. */
static inline void pt_returns_update(pt_returns *t)
{
    int first = (int)(t->usual + 0.5f) - PT_LEVELLED;
    pt_estimate e = {.first = first > 0 ? first : 0, .last = pt_age_bin(t->complete) - 1};
    pt_level_bins(t, e.first);
    pt_sum_levels(t, &e);
    pt_hazards_of_all(t, &e);
    pt_hazards_of_groups(t, &e);
    pt_fit_factors(t, &e);
    for (int class = 0; class < PT_CLASSES; class = pt_next_class(t, class)) {
        double factor = e.by_count[pt_count_of_class(class)] * e.by_growth[pt_growth_of_class(class)];
        double scale = (e.observed[class] + PT_TRUST_FACTOR) / (e.expected[class] * factor + PT_TRUST_FACTOR) * factor;
        double hazard[PT_AGES];
        pt_shrink(t->uses[class], t->risk[class], e.groups[pt_group_of_class(class)].hazard, scale, e.first, e.last,
                  hazard);
        pt_gittins(t, hazard, e.first, t->index[class]);
        for (int bin = 0; bin < PT_AGES; bin++) {
            t->uses[class][bin] *= PT_DECAY;
            t->risk[class][bin] *= PT_DECAY;
        }
    }
    pt_index_of_unknown_hints(t);
}
