/* What a profiler loads through NVTX_INJECTION64_PATH: counts ranges; at the end a line for each name and the balance
 * of this process go to the file NVTX_PROBE. One thread at a time is enough for the test. */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 64, TEXT = 32 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char names[NAMES][TEXT];
static long counts[NAMES], pushed, popped;

static int NVTX_API push(const char *name)
{
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < NAMES - 1 && names[i][0] && strcmp(names[i], name) != 0)
        i++;
    snprintf(names[i], TEXT, "%s", name);
    counts[i]++;
    pushed++;
    pthread_mutex_unlock(&mutex);
    return 0;
}

static int NVTX_API pop(void)
{
    pthread_mutex_lock(&mutex);
    popped++;
    pthread_mutex_unlock(&mutex);
    return 0;
}

static void report(void)
{
    FILE *file = fopen(getenv("NVTX_PROBE"), "w");
    if (!file)
        return;
    for (int i = 0; i < NAMES && names[i][0]; i++)
        fprintf(file, "%s: %ld\n", names[i], counts[i]);
    fprintf(file, "open: %ld of %ld\n", pushed - popped, pushed);
    fclose(file);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned int size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
        size <= NVTX_CBID_CORE_RangePop)
        return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    atexit(report);
    return 1;
}
