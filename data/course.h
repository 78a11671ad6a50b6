/*
 * The course of one source through its files (data/ledger.h): which targets its next sample has.
 *
 * A file of T tokens has T − 1 targets, numbered from 0; target q is token q + 1, predicted from token q. Sample m of a
 * file at length L has the targets m·L … m·L + L − 1. An epoch without changes is its samples in the order of
 * data/order.h: sample k of it is a closed form.
 *
 * After a change within an epoch (dtx_data_ledger_arrange) the new samples come in their own order, but for those of
 * whose targets some were consumed before: these are passed over. Then comes the rest: the targets that no sample had,
 * in pieces of the shortest length of the epoch in an order of their own, packed into samples, each piece a document of
 * its own; the last sample is filled up with targets that do not count. So every target comes once in an epoch, but for
 * the tail of each file, shorter than a sample of every length of the epoch. Whether a target was consumed is asked of
 * the layers, by the inverse of their orders, never of a list; the walk through such an epoch is sequential, and the
 * cursor in the ledger is where it stands.
 *
 * A course is constant; a cursor is a few integers, copied freely. Not collective.
 */
#ifndef DTX_DATA_COURSE_H
#define DTX_DATA_COURSE_H

#include "data/ledger.h"

struct dtx_course;

/* Where a course stands. */
struct dtx_cursor {
    bool fresh; /* no layers in this epoch */
    int64_t epoch, done;
    bool rest;
    int64_t unit, within;
};

/* Targets first … first + n − 1 of a file, the course's file-th. */
struct dtx_piece {
    int file;
    int64_t first, n;
};

/* From a record of the ledger, whose cursor is *start. The course must have a sample of its length. */
enum dtx_status dtx_course_open(struct dtx_ctx *ctx, uint64_t seed, const struct dtx_data_ledger *ledger,
                                const struct dtx_course_record *record, struct dtx_course **out,
                                struct dtx_cursor *start);
void dtx_course_close(struct dtx_course *c);            /* accepts NULL */
int64_t dtx_course_samples(const struct dtx_course *c); /* of an epoch without changes */

/* The next sample: pieces[≤ length], *n of them, together at most `length` targets; both NULL: only the cursor moves.
 */
void dtx_course_next(const struct dtx_course *c, struct dtx_cursor *cursor, struct dtx_piece *pieces, int64_t *n);
/* `count` samples on: at once where the epoch has no layers. */
void dtx_course_advance(const struct dtx_course *c, struct dtx_cursor *cursor, int64_t count);
/* Sample i of the files as they lie, one after another, i modulo their number. */
void dtx_course_in_order(const struct dtx_course *c, int64_t i, struct dtx_piece *piece);
/* Puts the cursor into a record made by dtx_data_ledger_arrange for this course. */
void dtx_course_note(const struct dtx_cursor *cursor, struct dtx_course_record *record);

#endif
