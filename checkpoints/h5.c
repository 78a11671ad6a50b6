#include "checkpoints/h5.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Bounds on what a text in a file may be, against damaged sizes. */
enum { TEXT_BYTES_MAX = 64 << 20, ALIGNMENT = 4096 };

static herr_t innermost(unsigned n, const H5E_error2_t *error, void *out)
{
    (void)n;
    if (error->desc && error->desc[0]) {
        snprintf(out, 512, "%s", error->desc);
        return 1;
    }
    return 0;
}

enum dtx_status dtx_h5_fail_at(struct dtx_ctx *ctx, const char *path, const char *what, const char *file, int line,
                               const char *function)
{
    char cause[512] = "no cause given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, cause);
    H5Eclear2(H5E_DEFAULT);
    return dtx_fail_at(ctx, DTX_E_LIBRARY, file, line, function, "%s: HDF5 cannot %s: %s", path, what, cause);
}

/* In the file format that has checksums in its own structures. */
hid_t dtx_h5_access_list(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (list < 0)
        return list;
    if (H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
        H5Pset_alignment(list, ALIGNMENT, ALIGNMENT) < 0 || H5Pset_fclose_degree(list, H5F_CLOSE_STRONG) < 0) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

enum dtx_status dtx_h5_open(struct dtx_ctx *ctx, const char *path, const void *data, int64_t bytes, hid_t *file)
{
    hid_t list = dtx_h5_access_list(), opened = -1;
    if (list >= 0 && H5Pset_fapl_core(list, 1 << 20, 0) >= 0 &&
        H5Pset_file_image(list, (void *)data, (size_t)bytes) >= 0)
        opened = H5Fopen("/dev/null/image", H5F_ACC_RDONLY, list); /* HDF5 wants a name that no file has */
    enum dtx_status status = opened < 0 ? dtx_h5_fail(ctx, path, "open the file") : DTX_OK;
    if (list >= 0)
        H5Pclose(list);
    if (status == DTX_OK)
        *file = opened;
    return status;
}

hid_t dtx_h5_creation_list(hid_t class)
{
    hid_t list = H5Pcreate(class);
    if (list >= 0 && !DTX_MUTANT(ckpt_object_times) && H5Pset_obj_track_times(list, 0) < 0) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

/* The groups above a name that are not there. HDF5 would make them by itself, with times. */
static enum dtx_status create_groups(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name)
{
    enum dtx_status status = DTX_OK;
    hid_t list = dtx_h5_creation_list(H5P_GROUP_CREATE);
    if (list < 0)
        return dtx_h5_fail(ctx, path, "make a property list");
    for (const char *end = strchr(name + 1, '/'); status == DTX_OK && end; end = strchr(end + 1, '/')) {
        char group[256];
        hid_t made = 0;
        snprintf(group, sizeof group, "%.*s", (int)(end - name), name);
        htri_t exists = H5Lexists(file, group, H5P_DEFAULT);
        if (exists == 0)
            made = H5Gcreate2(file, group, H5P_DEFAULT, list, H5P_DEFAULT);
        if (exists < 0 || made < 0)
            status = dtx_h5_fail(ctx, path, "make a group");
        else if (made > 0)
            H5Gclose(made);
    }
    H5Pclose(list);
    return status;
}

enum dtx_status dtx_h5_create_set(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name, hid_t type,
                                  hid_t space, hid_t creation, hid_t *set)
{
    DTX_TRY(ctx, create_groups(ctx, file, path, name));
    hid_t list = creation == H5P_DEFAULT ? dtx_h5_creation_list(H5P_DATASET_CREATE) : creation;
    hid_t made = list < 0 ? list : H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    enum dtx_status status = made < 0 ? dtx_h5_fail(ctx, path, "make a dataset") : DTX_OK;
    if (creation == H5P_DEFAULT && list >= 0)
        H5Pclose(list);
    if (status == DTX_OK)
        *set = made;
    return status;
}

static hid_t bf16_type(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    /* sign at bit 15, 8 bits of exponent from bit 7, 7 of mantissa from bit 0 */
    if (type >= 0 &&
        (H5Tset_fields(type, 15, 7, 8, 0, 7) < 0 || H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, 127) < 0)) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t dtx_h5_type(enum dtx_dtype dtype)
{
    switch (dtype) {
    case DTX_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case DTX_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DTX_BF16:
        return bf16_type();
    case DTX_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DTX_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case DTX_U8:
        return H5Tcopy(H5T_STD_U8LE);
    }
    return -1;
}

enum dtx_status dtx_h5_write_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                       hid_t type, int n, const void *data)
{
    enum dtx_status status = DTX_OK;
    hsize_t size = (hsize_t)n;
    hid_t attribute = -1, space = n ? H5Screate_simple(1, &size, NULL) : H5Screate(H5S_SCALAR);
    if (space >= 0)
        attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute < 0 || H5Awrite(attribute, type, data) < 0)
        status = dtx_h5_fail(ctx, path, name);
    if (attribute >= 0)
        H5Aclose(attribute);
    if (space >= 0)
        H5Sclose(space);
    return status;
}

enum dtx_status dtx_h5_read_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name, hid_t type,
                                      int n, void *data)
{
    char what[96];
    enum dtx_status status = DTX_OK;
    snprintf(what, sizeof what, "read attribute '%s'", name);
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0)
        return dtx_h5_fail(ctx, path, what);
    hid_t space = H5Aget_space(attribute);
    if (space < 0 || H5Sget_simple_extent_npoints(space) != (n ? n : 1))
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s: attribute '%s' has another number of values than %d", path, name,
                          n ? n : 1);
    else if (H5Aread(attribute, type, data) < 0)
        status = dtx_h5_fail(ctx, path, what);
    if (space >= 0)
        H5Sclose(space);
    H5Aclose(attribute);
    return status;
}

static hid_t text_type(size_t bytes)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && (H5Tset_size(type, bytes ? bytes : 1) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

enum dtx_status dtx_h5_write_text_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                            const char *text)
{
    hid_t type = text_type(strlen(text) + 1);
    if (type < 0)
        return dtx_h5_fail(ctx, path, name);
    enum dtx_status status = dtx_h5_write_attribute(ctx, object, path, name, type, 0, text);
    H5Tclose(type);
    return status;
}

enum dtx_status dtx_h5_read_text_attribute(struct dtx_ctx *ctx, hid_t object, const char *path, const char *name,
                                           char *text, size_t text_bytes)
{
    hid_t type = text_type(text_bytes);
    if (type < 0)
        return dtx_h5_fail(ctx, path, name);
    enum dtx_status status = dtx_h5_read_attribute(ctx, object, path, name, type, 0, text);
    H5Tclose(type);
    if (status == DTX_OK)
        text[text_bytes - 1] = '\0';
    return status;
}

enum dtx_status dtx_h5_write_text(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name, const char *text)
{
    enum dtx_status status = DTX_OK;
    hid_t type = text_type(strlen(text) + 1), space = H5Screate(H5S_SCALAR), set = -1;
    if (type >= 0 && space >= 0)
        status = dtx_h5_create_set(ctx, file, path, name, type, space, H5P_DEFAULT, &set);
    if (status == DTX_OK && (set < 0 || H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) < 0))
        status = dtx_h5_fail(ctx, path, "write a text");
    if (set >= 0)
        H5Dclose(set);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

enum dtx_status dtx_h5_read_text(struct dtx_ctx *ctx, hid_t file, const char *path, const char *name, char **text)
{
    enum dtx_status status = DTX_OK;
    void *data = NULL;
    hid_t type = -1, memory = -1, set = H5Dopen2(file, name, H5P_DEFAULT);
    if (set < 0)
        return dtx_h5_fail(ctx, path, "find a text");
    size_t bytes = 0;
    DTX_H5_GOTO(ctx, status, type, H5Dget_type(set), path, "read a text's type", done);
    bytes = H5Tget_size(type);
    if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 || bytes > TEXT_BYTES_MAX) {
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s: '%s' is no text of a sensible length", path, name);
        goto done;
    }
    DTX_H5_GOTO(ctx, status, memory, text_type(bytes + 1), path, "make a type", done);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, (int64_t)bytes + 1, 1, &data), done);
    if (H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        status = dtx_h5_fail(ctx, path, "read a text");
done:
    if (memory >= 0)
        H5Tclose(memory);
    if (type >= 0)
        H5Tclose(type);
    H5Dclose(set);
    if (status == DTX_OK)
        *text = data;
    else
        dtx_mem_free(data);
    return status;
}
