/*
 * The HDF5 driver under files being made: pages in memory, written out by dtx when HDF5 is done. Space that HDF5
 * allocates and never writes (the boxes' bytes) takes no page, and where it shares one it is left alone.
 */
#include "checkpoints/h5.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/mem.h"

enum { PAGE = 4096 };

struct page {
    uint64_t number; /* address / PAGE */
    unsigned char data[PAGE];
    bool written[PAGE]; /* by HDF5 */
};

/* What HDF5 calls the file. */
struct memory_file {
    H5FD_t public;
    struct dtx_h5_out *out;
    haddr_t eoa;
};

/* First page whose number is not below `number`. */
static int64_t page_at(const struct dtx_h5_out *out, uint64_t number)
{
    int64_t low = 0, high = out->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (out->pages[middle]->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct page *find_page(const struct dtx_h5_out *out, uint64_t number)
{
    int64_t i = page_at(out, number);
    return i < out->n && out->pages[i]->number == number ? out->pages[i] : NULL;
}

static struct page *make_page(struct dtx_h5_out *out, uint64_t number)
{
    int64_t i = page_at(out, number);
    if (i < out->n && out->pages[i]->number == number)
        return out->pages[i];
    if (out->n == out->room) {
        struct page **more = realloc(out->pages, (size_t)(2 * out->room + 64) * sizeof(struct page *));
        if (!more)
            return NULL;
        out->pages = more;
        out->room = 2 * out->room + 64;
    }
    struct page *page = calloc(1, sizeof *page);
    if (!page)
        return NULL;
    page->number = number;
    memmove(&out->pages[i + 1], &out->pages[i], (size_t)(out->n - i) * sizeof(struct page *));
    out->pages[i] = page;
    out->n++;
    return page;
}

static H5FD_t *file_open(const char *name, unsigned flags, hid_t list, haddr_t limit)
{
    (void)name, (void)flags, (void)limit;
    struct dtx_h5_out *const *out = H5Pget_driver_info(list);
    struct memory_file *file = out ? calloc(1, sizeof *file) : NULL;
    if (!file)
        return NULL;
    file->out = *out;
    return &file->public;
}

static herr_t file_close(H5FD_t *file)
{
    free(file);
    return 0;
}

static int file_compare(const H5FD_t *a, const H5FD_t *b)
{
    return (a > b) - (a < b);
}

static herr_t file_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    if (flags)
        *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA |
                 H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t file_end_allocated(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct memory_file *)file)->eoa;
}

static herr_t file_set_end_allocated(H5FD_t *file, H5FD_mem_t type, haddr_t address)
{
    (void)type;
    ((struct memory_file *)file)->eoa = address;
    return 0;
}

static haddr_t file_end(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return (haddr_t)((const struct memory_file *)file)->out->bytes;
}

static herr_t file_read(H5FD_t *file, H5FD_mem_t type, hid_t list, haddr_t address, size_t size, void *data)
{
    (void)type, (void)list;
    const struct dtx_h5_out *out = ((struct memory_file *)file)->out;
    for (size_t done = 0; done < size;) {
        uint64_t at = address + done, from = at % PAGE;
        size_t n = PAGE - from < size - done ? PAGE - from : size - done;
        const struct page *page = find_page(out, at / PAGE);
        if (page)
            memcpy((char *)data + done, page->data + from, n);
        else
            memset((char *)data + done, 0, n);
        done += n;
    }
    return 0;
}

static herr_t file_write(H5FD_t *file, H5FD_mem_t type, hid_t list, haddr_t address, size_t size, const void *data)
{
    (void)type, (void)list;
    struct dtx_h5_out *out = ((struct memory_file *)file)->out;
    for (size_t done = 0; done < size;) {
        uint64_t at = address + done, from = at % PAGE;
        size_t n = PAGE - from < size - done ? PAGE - from : size - done;
        struct page *page = make_page(out, at / PAGE);
        if (!page)
            return -1;
        memcpy(page->data + from, (const char *)data + done, n);
        memset(page->written + from, true, n);
        done += n;
    }
    out->bytes = dtx_max64(out->bytes, (int64_t)(address + size));
    return 0;
}

static herr_t file_truncate(H5FD_t *file, hid_t list, hbool_t closing)
{
    (void)list, (void)closing;
    struct memory_file *f = (struct memory_file *)file;
    f->out->bytes = (int64_t)f->eoa;
    return 0;
}

static const H5FD_class_t driver = {
    .name = "dtx_memory",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct dtx_h5_out *),
    .open = file_open,
    .close = file_close,
    .cmp = file_compare,
    .query = file_query,
    .get_eoa = file_end_allocated,
    .set_eoa = file_set_end_allocated,
    .get_eof = file_end,
    .read = file_read,
    .write = file_write,
    .truncate = file_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

enum dtx_status dtx_h5_create(struct dtx_ctx *ctx, const char *path, struct dtx_h5_out *out)
{
    enum dtx_status status = DTX_OK;
    hid_t list = dtx_h5_access_list(), creation = dtx_h5_creation_list(H5P_FILE_CREATE), id = -1;
    memset(out, 0, sizeof *out);
    out->file = out->driver = -1;
    if (list >= 0 && creation >= 0)
        id = H5FDregister(&driver);
    if (id < 0 || H5Pset_driver(list, id, &out) < 0)
        status = dtx_h5_fail(ctx, path, "register its driver");
    else if ((out->file = H5Fcreate(path, H5F_ACC_TRUNC, creation, list)) < 0)
        status = dtx_h5_fail(ctx, path, "begin the file");
    out->driver = id;
    if (creation >= 0)
        H5Pclose(creation);
    if (list >= 0)
        H5Pclose(list);
    if (status != DTX_OK)
        dtx_h5_discard(out);
    return status;
}

void dtx_h5_discard(struct dtx_h5_out *out)
{
    if (out->file >= 0)
        H5Fclose(out->file);
    if (out->driver >= 0)
        H5FDunregister(out->driver);
    for (int64_t i = 0; i < out->n; i++)
        free(out->pages[i]);
    free(out->pages);
    memset(out, 0, sizeof *out);
    out->file = out->driver = -1;
}

/* What HDF5 wrote of a page, piece by piece. */
static enum dtx_status write_page(struct dtx_ctx *ctx, const char *path, int fd, const struct page *page)
{
    for (int64_t from = 0, to; from < PAGE; from = to) {
        for (to = from + 1; to < PAGE && page->written[to] == page->written[from];)
            to++;
        if (page->written[from])
            DTX_TRY(ctx, dtx_disk_write_at(ctx, fd, path, page->data + from, to - from,
                                           (int64_t)page->number * PAGE + from));
    }
    return DTX_OK;
}

static enum dtx_status write_pages(struct dtx_ctx *ctx, const char *path, int fd, const struct dtx_h5_out *out)
{
    DTX_TRY(ctx, dtx_disk_resize(ctx, fd, path, out->bytes));
    for (int64_t i = 0; i < out->n; i++)
        DTX_TRY(ctx, write_page(ctx, path, fd, out->pages[i]));
    return DTX_OK;
}

enum dtx_status dtx_h5_finish_into(struct dtx_ctx *ctx, const char *path, int fd, struct dtx_h5_out *out)
{
    enum dtx_status status = DTX_OK;
    if (H5Fclose(out->file) < 0)
        status = dtx_h5_fail(ctx, path, "finish the file");
    out->file = -1;
    if (status == DTX_OK)
        status = write_pages(ctx, path, fd, out);
    dtx_h5_discard(out);
    return status;
}

enum dtx_status dtx_h5_finish(struct dtx_ctx *ctx, const char *path, struct dtx_h5_out *out)
{
    int fd;
    enum dtx_status status = dtx_disk_open_new(ctx, path, 0, &fd);
    if (status != DTX_OK) {
        dtx_h5_discard(out);
        return status;
    }
    status = dtx_h5_finish_into(ctx, path, fd, out);
    if (status == DTX_OK)
        return dtx_disk_close_written(ctx, fd, path);
    close(fd);
    return status;
}
