/* A libnvidia-ml.so.1 for tests: answers the calls that pynvml makes from a text file.
 *
 * CCS_STUB_NVML names the file, which is read anew at every call. A line is one of
 *   gpu UUID TOTAL RESERVED USED MIG NAME    MIG: 1 on, 0 off, - not supported
 *   mig UUID TOTAL RESERVED USED             an instance of the gpu above it
 *   empty                                    a place for an instance that holds none
 *   process KIND PID USED                    of the device above it; KIND: compute, mps, graphics; USED: - not told
 *   fail FUNCTION CODE [UUID]                this call, on this device or on any, answers with this error
 *   log FILE                                 nvmlInit and nvmlShutdown write a line there
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { DEVICES = 64, PROCESSES = 64, FAILURES = 64 };

typedef unsigned long long bytes;
typedef struct { char kind[16]; unsigned pid; bytes used; } Process;
typedef struct {
    char uuid[96], name[96];
    bytes total, reserved, used;
    int parent;          /* index of its gpu; -1: it is one */
    int mig;             /* -1: not supported */
    int empty, places;
    int processes;
    Process process[PROCESSES];
} Device;
typedef struct { char function[64], uuid[96]; int code; } Failure;
typedef struct { unsigned pid; bytes used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { bytes total, free, used; } Memory;
typedef struct { unsigned version; bytes total, reserved, free, used; } MemoryV2;

static Device device[DEVICES];
static Failure failure[FAILURES];
static char log_file[512];
static int devices, failures, starts;

static bytes number(const char *text) {
    return strcmp(text, "-") ? strtoull(text, NULL, 10) : ~0ULL;
}

static void read_line(char *line) {
    char word[16] = "", a[512] = "", b[96] = "", c[96] = "", d[96] = "", e[96] = "", rest[96] = "";
    static int gpu;
    sscanf(line, "%15s %511s %95s %95s %95s %95s %95[^\n]", word, a, b, c, d, e, rest);
    if (!strcmp(word, "log")) strcpy(log_file, a);
    else if (!strcmp(word, "fail") && failures < FAILURES) {
        Failure *f = &failure[failures++];
        snprintf(f->function, sizeof f->function, "%.63s", a);
        f->code = atoi(b);
        strcpy(f->uuid, c);
    } else if (!strcmp(word, "process") && devices && device[devices - 1].processes < PROCESSES) {
        Device *last = &device[devices - 1];
        Process *p = &last->process[last->processes++];
        snprintf(p->kind, sizeof p->kind, "%.15s", a);
        p->pid = (unsigned)atoi(b);
        p->used = number(c);
    } else if ((!strcmp(word, "gpu") || !strcmp(word, "mig") || !strcmp(word, "empty")) && devices < DEVICES) {
        Device *new = &device[devices];
        memset(new, 0, sizeof *new);
        snprintf(new->uuid, sizeof new->uuid, "%.95s", a);
        new->total = number(b), new->reserved = number(c), new->used = number(d);
        if (!strcmp(word, "gpu")) {
            gpu = devices;
            new->parent = -1;
            new->mig = strcmp(e, "-") ? atoi(e) : -1;
            strcpy(new->name, rest);
        } else {
            new->parent = gpu;
            new->mig = -1;
            new->empty = !strcmp(word, "empty");
            device[gpu].places++;
        }
        devices++;
    }
}

static void load(void) {
    char line[1024];
    const char *path = getenv("CCS_STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    devices = failures = 0;
    log_file[0] = 0;
    while (file && fgets(line, sizeof line, file)) read_line(line);
    if (file) fclose(file);
}

/* What every call answers with before it looks at anything else. */
static int begin(const char *function, const Device *on) {
    load();
    for (int i = 0; i < failures; i++)
        if (!strcmp(failure[i].function, function) &&
            (!failure[i].uuid[0] || (on && !strcmp(failure[i].uuid, on->uuid))))
            return failure[i].code;
    return starts ? OK : UNINITIALIZED;
}

static void note(const char *word) {
    FILE *file = log_file[0] ? fopen(log_file, "a") : NULL;
    if (file) fprintf(file, "%s\n", word), fclose(file);
}

#define BEGIN(function, on) do { int code = begin(function, on); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    starts++;
    int code = begin("nvmlInitWithFlags", NULL);
    if (code) return starts--, code;
    note("init");
    return OK;
}

int nvmlShutdown(void) {
    BEGIN("nvmlShutdown", NULL);
    starts--;
    note("shutdown");
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN("nvmlDeviceGetCount", NULL);
    *count = 0;
    for (int i = 0; i < devices; i++) *count += device[i].parent < 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **handle) {
    load();
    for (int i = 0; i < devices; i++)
        if (device[i].parent < 0 && !index--) {
            BEGIN("nvmlDeviceGetHandleByIndex", &device[i]);
            *handle = &device[i];
            return OK;
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **handle) {
    load();
    for (int i = 0; i < devices; i++)
        if (!strcmp(device[i].uuid, uuid)) {
            BEGIN("nvmlDeviceGetHandleByUUID", &device[i]);
            *handle = &device[i];
            return OK;
        }
    BEGIN("nvmlDeviceGetHandleByUUID", NULL);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Device *on, char *uuid, unsigned size) {
    BEGIN("nvmlDeviceGetUUID", on);
    snprintf(uuid, size, "%s", on->uuid);
    return OK;
}

int nvmlDeviceGetName(Device *on, char *name, unsigned size) {
    BEGIN("nvmlDeviceGetName", on);
    snprintf(name, size, "%s", on->name);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *on, Memory *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo", on);
    memory->total = on->total;
    memory->used = on->used + on->reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Device *on, MemoryV2 *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo_v2", on);
    if (memory->version != (sizeof *memory | 2 << 24)) return INVALID_ARGUMENT;
    memory->total = on->total;
    memory->reserved = on->reserved;
    memory->used = on->used;
    memory->free = on->total - on->reserved - on->used;
    return OK;
}

int nvmlDeviceGetMigMode(Device *on, unsigned *current, unsigned *pending) {
    BEGIN("nvmlDeviceGetMigMode", on);
    if (on->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)on->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *on, unsigned *count) {
    BEGIN("nvmlDeviceGetMaxMigDeviceCount", on);
    *count = (unsigned)on->places;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *on, unsigned index, Device **handle) {
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex", on);
    for (int i = 0; i < devices; i++)
        if (device[i].parent == on - device && !index--) {
            *handle = &device[i];
            return device[i].empty ? NOT_FOUND : OK;
        }
    return INVALID_ARGUMENT;
}

static int processes(const char *function, const char *kind, Device *on, unsigned *count, ProcessInfo *found) {
    unsigned room = *count;
    BEGIN(function, on);
    if (on->parent >= 0 && !strcmp(kind, "graphics")) return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < on->processes; i++)
        if (!strcmp(on->process[i].kind, kind)) {
            if (found && *count < room) found[*count] = (ProcessInfo){on->process[i].pid, on->process[i].used, 0, 0};
            ++*count;
        }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *on, unsigned *count, ProcessInfo *found) {
    return processes("nvmlDeviceGetComputeRunningProcesses_v3", "compute", on, count, found);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *on, unsigned *count, ProcessInfo *found) {
    return processes("nvmlDeviceGetComputeRunningProcesses_v2", "compute", on, count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *on, unsigned *count, ProcessInfo *found) {
    return processes("nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps", on, count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *on, unsigned *count, ProcessInfo *found) {
    return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics", on, count, found);
}
