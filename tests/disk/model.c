#include "tests/disk/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { NAME = 128, PATH = 1024, SECTOR = 512, NONE = -1 };

struct name {
    char text[NAME];
    int node;
};

struct names {
    struct name *list;
    int n, room;
};

struct bytes {
    char *data;
    int64_t n;
};

struct node {
    uint64_t inode;
    bool folder;
    struct names names, safe_names; /* of a folder: now, and those that are durable */
    struct bytes now, safe;         /* of a file */
};

/* A name that changed and is not durable yet. Those of one operation stay together. */
struct change {
    int operation, folder, node; /* node NONE: the name is gone */
    char text[NAME];
    bool done;
};

struct model {
    char root[512];
    struct node *nodes; /* 0: the root */
    int n, room;
    struct change *changes;
    int n_changes, room_changes, operation;
};

static void *grow(void *list, int n, int *room, size_t size)
{
    if (n < *room)
        return list;
    *room = 2 * *room + 16;
    return realloc(list, (size_t)*room * size);
}

static int add_node(struct model *m, uint64_t inode, bool folder)
{
    m->nodes = grow(m->nodes, m->n, &m->room, sizeof *m->nodes);
    m->nodes[m->n] = (struct node){.inode = inode, .folder = folder};
    return m->n++;
}

struct model *model_make(const char *root)
{
    struct model *m = calloc(1, sizeof *m);
    snprintf(m->root, sizeof m->root, "%s", root);
    add_node(m, 0, true);
    return m;
}

void model_free(struct model *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->nodes[i].names.list);
        free(m->nodes[i].safe_names.list);
        free(m->nodes[i].now.data);
        free(m->nodes[i].safe.data);
    }
    free(m->nodes);
    free(m->changes);
    free(m);
}

static int find_name(const struct names *names, const char *text)
{
    for (int i = 0; i < names->n; i++)
        if (strcmp(names->list[i].text, text) == 0)
            return i;
    return NONE;
}

static void set_name(struct names *names, const char *text, int node)
{
    int i = find_name(names, text);
    if (node == NONE) {
        if (i != NONE)
            names->list[i] = names->list[--names->n];
        return;
    }
    if (i == NONE) {
        names->list = grow(names->list, names->n, &names->room, sizeof *names->list);
        i = names->n++;
        snprintf(names->list[i].text, NAME, "%.127s", text);
    }
    names->list[i].node = node;
}

/* The folder in which the last part of the path is a name; NONE when there is none. */
static int walk(const struct model *m, const char *path, char last[NAME])
{
    size_t skip = strlen(m->root);
    int at = 0;
    if (strncmp(path, m->root, skip) != 0)
        return NONE;
    for (path += skip; *path == '/';) {
        const char *end = strchr(++path, '/');
        snprintf(last, NAME, "%.*s", end ? (int)(end - path) : (int)strlen(path), path);
        if (!end)
            return at;
        int i = find_name(&m->nodes[at].names, last);
        if (i == NONE || !m->nodes[m->nodes[at].names.list[i].node].folder)
            return NONE;
        at = m->nodes[at].names.list[i].node;
        path = end;
    }
    return NONE;
}

static int node_at(const struct model *m, const char *path)
{
    char last[NAME];
    int folder = walk(m, path, last);
    int i = folder == NONE ? NONE : find_name(&m->nodes[folder].names, last);
    return i == NONE ? NONE : m->nodes[folder].names.list[i].node;
}

/* Gives the name at `path` another node, or takes it away. */
static bool rename_to(struct model *m, const char *path, int node)
{
    char last[NAME];
    int folder = walk(m, path, last);
    if (folder == NONE)
        return false;
    set_name(&m->nodes[folder].names, last, node);
    m->changes = grow(m->changes, m->n_changes, &m->room_changes, sizeof *m->changes);
    struct change *c = &m->changes[m->n_changes++];
    *c = (struct change){.operation = m->operation, .folder = folder, .node = node};
    memcpy(c->text, last, NAME);
    return true;
}

/* The newest node of that inode: numbers are used again after their file is gone. */
static int node_of(const struct model *m, uint64_t inode)
{
    for (int i = m->n - 1; i > 0; i--)
        if (m->nodes[i].inode == inode)
            return i;
    return 0; /* the root, which nobody saw being made */
}

static void resize(struct bytes *b, int64_t n)
{
    b->data = realloc(b->data, (size_t)n + 1);
    if (n > b->n)
        memset(b->data + b->n, 0, (size_t)(n - b->n));
    b->n = n;
}

static void copy(struct bytes *to, const struct bytes *from)
{
    resize(to, from->n);
    if (from->n)
        memcpy(to->data, from->data, (size_t)from->n);
}

static void sync_folder(struct model *m, int folder)
{
    for (int i = 0; i < m->n_changes; i++) {
        if (m->changes[i].folder != folder || m->changes[i].done)
            continue;
        for (int k = 0; k < m->n_changes; k++) { /* the other half of a rename */
            struct change *c = &m->changes[k];
            if (c->operation != m->changes[i].operation || c->done)
                continue;
            set_name(&m->nodes[c->folder].safe_names, c->text, c->node);
            c->done = k != i;
        }
        m->changes[i].done = true;
    }
    int n = 0;
    for (int i = 0; i < m->n_changes; i++)
        if (!m->changes[i].done)
            m->changes[n++] = m->changes[i];
    m->n_changes = n;
}

static bool apply_names(struct model *m, const struct disk_record *r, const char *path, const char *other)
{
    int node = node_at(m, path), second;
    switch (r->call) {
    case CALL_OPEN:
    case CALL_MKDIR:
        return rename_to(m, path, add_node(m, r->inode, r->call == CALL_MKDIR));
    case CALL_RENAME:
        return node != NONE && rename_to(m, path, NONE) && rename_to(m, other, node);
    case CALL_EXCHANGE:
        second = node_at(m, other);
        return node != NONE && second != NONE && rename_to(m, path, second) && rename_to(m, other, node);
    case CALL_LINK:
        return node != NONE && rename_to(m, other, node);
    default:
        return node != NONE && rename_to(m, path, NONE);
    }
}

bool model_apply(struct model *m, const struct disk_record *r, const char *path, const char *other, const char *data)
{
    int at = node_of(m, r->inode);
    struct node *node = &m->nodes[at];
    m->operation++;
    switch (r->call) {
    case CALL_MARK:
        return true;
    case CALL_WRITE:
        if (node->folder)
            return false;
        resize(&node->now, dtx_max64(node->now.n, r->offset + r->data_bytes));
        memcpy(node->now.data + r->offset, data, (size_t)r->data_bytes);
        return true;
    case CALL_TRUNCATE:
        if (node->folder)
            return false;
        resize(&node->now, r->offset);
        return true;
    case CALL_SYNC:
        if (node->folder)
            sync_folder(m, at);
        else
            copy(&node->safe, &node->now);
        return true;
    default:
        return apply_names(m, r, path, other);
    }
}

struct crash {
    const struct model *model;
    enum model_names names;
    enum model_data data;
    uint64_t seed;
    bool write;
};

static bool coin(const struct crash *c, uint64_t what)
{
    return dtx_rng_uniform(dtx_rng_key(c->seed, "crash"), what) < 0.5;
}

static struct names names_after(const struct crash *c, int folder)
{
    const struct model *m = c->model;
    const struct names *from = c->names == NAMES_KEPT ? &m->nodes[folder].names : &m->nodes[folder].safe_names;
    struct names out = {.n = from->n, .room = from->n + 1};
    out.list = malloc((size_t)out.room * sizeof *out.list);
    if (from->n)
        memcpy(out.list, from->list, (size_t)from->n * sizeof *out.list);
    for (int i = 0; i < m->n_changes && c->names == NAMES_SOME; i++)
        if (m->changes[i].folder == folder && coin(c, (uint64_t)m->changes[i].operation))
            set_name(&out, m->changes[i].text, m->changes[i].node);
    return out;
}

static struct bytes bytes_after(const struct crash *c, int at)
{
    const struct node *node = &c->model->nodes[at];
    struct bytes out = {NULL, 0};
    copy(&out, c->data == DATA_KEPT ? &node->now : &node->safe);
    if (c->data == DATA_ZEROED || c->data == DATA_TORN)
        resize(&out, node->now.n);
    for (int64_t from = 0; c->data == DATA_TORN && from < out.n; from += SECTOR)
        if (coin(c, (uint64_t)at << 32 | (uint64_t)(from / SECTOR)))
            memcpy(out.data + from, node->now.data + from, (size_t)dtx_min64(SECTOR, out.n - from));
    return out;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

static uint64_t crash_file(const struct crash *c, int at, const char *path)
{
    struct bytes bytes = bytes_after(c, at);
    uint64_t hash = dtx_hash(bytes.data, (size_t)bytes.n, 0);
    if (c->write) {
        int fd = open(path, O_WRONLY | O_CREAT, 0666);
        if (fd < 0 || write(fd, bytes.data, (size_t)bytes.n) != bytes.n || close(fd) != 0) {
            perror(path);
            exit(1);
        }
    }
    free(bytes.data);
    return hash;
}

static uint64_t crash_folder(const struct crash *c, int folder, const char *path)
{
    struct names names = names_after(c, folder);
    uint64_t hash = 1;
    qsort(names.list, (size_t)names.n, sizeof *names.list, by_text);
    for (int i = 0; i < names.n; i++) {
        char below[PATH];
        int at = names.list[i].node;
        snprintf(below, sizeof below, "%s/%s", path, names.list[i].text);
        if (c->write && c->model->nodes[at].folder && mkdir(below, 0777) != 0) {
            perror(below);
            exit(1);
        }
        uint64_t inner = c->model->nodes[at].folder ? crash_folder(c, at, below) : crash_file(c, at, below);
        hash = dtx_hash(names.list[i].text, strlen(names.list[i].text), hash);
        hash = dtx_hash(&inner, sizeof inner, hash);
    }
    free(names.list);
    return hash;
}

uint64_t model_crash(const struct model *m, enum model_names names, enum model_data data, uint64_t seed,
                     const char *out)
{
    struct crash c = {m, names, data, seed, out != NULL};
    return crash_folder(&c, 0, out ? out : "");
}
