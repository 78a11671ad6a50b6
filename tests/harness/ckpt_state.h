/* A small state as a training run has it, cut for any rank of any mesh: for tests of checkpoints. Every element is a
 * function of the array's name and the element's place in the whole array; padding holds CKPT_PADDING bytes. */
#ifndef DTX_TESTS_HARNESS_CKPT_STATE_H
#define DTX_TESTS_HARNESS_CKPT_STATE_H

#include "checkpoints/ckpt.h"

enum { CKPT_PADDING = 0xA5 };

struct ckpt_mesh {
    int tp, dp, pp;
};

struct ckpt_state {
    struct dtx_ckpt_item *items;
    int n, room;
};

/* Adds the items of one rank (rank = (pp·dp_size + dp)·tp_size + tp); `salt` changes all values. */
void ckpt_state_add(struct ckpt_state *state, struct ckpt_mesh mesh, int rank, uint64_t salt);
void ckpt_state_free(struct ckpt_state *state);
/* Bytes that belong to boxes become 0; padding stays. */
void ckpt_state_clear(struct ckpt_state *state);
/* Number of bytes that are not as ckpt_state_add made them with that salt. */
int64_t ckpt_state_differences(const struct ckpt_state *state, uint64_t salt);
struct dtx_ckpt_meta ckpt_state_meta(int64_t step, struct ckpt_mesh mesh);
/* The value of one element, as a number. */
double ckpt_state_value(const char *name, enum dtx_dtype dtype, int64_t index, uint64_t salt);

/* dtx_ckpt_find as a run's start goes on with it, every byte verified instead of loading: what is damaged anywhere is
 * passed over. Collective over world. */
enum dtx_status ckpt_find_whole(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir, const char *what,
                                char *path, size_t path_bytes);

/* A fresh folder under the system's temporary folder; ckpt_temp_remove empties it with all below. */
void ckpt_temp_make(char path[256]);
void ckpt_temp_remove(const char *path);

#endif
