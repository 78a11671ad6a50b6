/* The HDF5 compound type of a row of /boxes, laid over struct dtx_ckpt_entry. */
#ifndef DTX_CHECKPOINTS_INDEX_TYPE_H
#define DTX_CHECKPOINTS_INDEX_TYPE_H

#include <hdf5.h>

/* Close with H5Tclose; negative on failure. */
hid_t dtx_ckpt_entry_type(void);

#endif
