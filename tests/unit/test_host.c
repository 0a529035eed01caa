/* Memory and CPUs of machines, containers and batch jobs, from folders with their /proc and /sys;
 * and messages about GPUs that are hidden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/host.h"
#include "kernels/gpu_visible.h"

static char root[] = "/tmp/ctw_test_host_XXXXXX";

static void empty_root(void)
{
    char line[256];
    snprintf(line, sizeof(line), "rm -rf %s && mkdir %s", root, root);
    assert_int_equal(system(line), 0);
}

/* Makes the file, and its folders. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *slash = strchr(whole + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* 16 GiB, of which 12 are available, in this group. */
static void start(const char *group)
{
    empty_root();
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
                         "MemAvailable:   12582912 kB\n");
    put("/proc/self/cgroup", group);
}

static void assert_memory(double total_gib, double free_gib)
{
    const double gib = 1024.0 * 1024 * 1024;
    const struct ctw_host_memory m = ctw_host_memory(root);
    assert_true((double)m.total == total_gib * gib);
    assert_true((double)m.free == free_gib * gib);
}

static void a_machine_without_limits(void **state)
{
    (void)state;
    start("0::/user.slice\n");
    assert_memory(16, 12);
    assert_int_equal(ctw_host_cpus(root, 8), 8);
    put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    assert_memory(16, 12);
    assert_int_equal(ctw_host_cpus(root, 8), 8);
    assert_int_equal(ctw_host_cpus(root, 0), 1);
}

/* A container with a namespace of its own sees its group as the root. */
static void a_container_of_version_2(void **state)
{
    (void)state;
    start("0::/\n");
    put("/sys/fs/cgroup/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/memory.current", "2147483648\n");
    put("/sys/fs/cgroup/memory.stat",
        "anon 5\ninactive_file 536870912\nactive_file 536870912\nslab 7\n");
    put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    assert_memory(4, 3);
    assert_int_equal(ctw_host_cpus(root, 8), 3);
    assert_int_equal(ctw_host_cpus(root, 2), 2);
    put("/sys/fs/cgroup/memory.current", "9999999999\n"); /* more than the limit, for a moment */
    put("/sys/fs/cgroup/memory.stat", "anon 5\n");
    assert_memory(4, 0);
}

/* The strictest level counts: Slurm limits the job, and its steps are groups below. */
static void a_batch_job_below_its_limit(void **state)
{
    (void)state;
    start("0::/slurm/job_7/step_0\n");
    put("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.current", "1073741824\n");
    put("/sys/fs/cgroup/slurm/job_7/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/slurm/cpu.max", "200000 100000\n");
    assert_memory(8, 7);
    assert_int_equal(ctw_host_cpus(root, 64), 2);
}

/* Docker's groups are named as outside, but mounted as the container's root. */
static void a_container_of_version_1(void **state)
{
    (void)state;
    start("12:devices:/docker/ab\n9:memory:/docker/ab\n4:cpuset,cpu,cpuacct:/docker/ab\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "cache 7\ninactive_file 9\ntotal_inactive_file 268435456\n"
        "total_active_file 268435456\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    assert_memory(3, 2);
    assert_int_equal(ctw_host_cpus(root, 8), 3);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(ctw_host_cpus(root, 8), 8);
    /* No limit: a number of pages that no machine has. */
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_memory(16, 12);
}

/* "cpuset" is not "cpu", and a list's other names are found. */
static void controllers_are_whole_names(void **state)
{
    (void)state;
    start("4:cpuset:/a\n5:cpuacct,cpu:/b\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "500000\n");
    put("/sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
    assert_int_equal(ctw_host_cpus(root, 8), 5);
}

static void this_process(void **state)
{
    (void)state;
    const struct ctw_host_memory m = ctw_host_memory("");
    assert_true(m.total > 0);
    assert_true(m.free > 0);
    assert_true(m.free <= m.total);
    assert_in_range(ctw_host_resident(""), 100 << 10, m.total);
    put("/proc/self/statm", "1000 25 3 4 5 6 7\n");
    assert_int_equal(ctw_host_resident(root) % 25, 0);
    empty_root();
    assert_int_equal(ctw_host_resident(root), 0);
    assert_memory(0, 0);
}

static void assert_says(const struct ctw_err *err, enum ctw_status status, const char *part)
{
    assert_int_equal(err->status, status);
    if (strstr(err->msg, part) == NULL)
        fail_msg("%s", err->msg);
}

static void gpus_that_are_hidden(void **state)
{
    (void)state;
    struct ctw_err err;
    unsetenv("CUDA_VISIBLE_DEVICES");
    (void)ctw_gpu_none(&err);
    assert_says(&err, CTW_EUNSUP, "the driver reports none (check CUDA_VISIBLE_DEVICES)");
    (void)ctw_gpu_missing(2, 1, false, &err);
    assert_says(&err, CTW_EINVAL, "device 2: this machine has 1 GPU, numbered from 0");
    (void)ctw_gpu_missing(1, 1, true, &err);
    assert_says(&err, CTW_EINVAL, "sees one MIG instance, device 0, as CUDA shows no program more");
    for (int i = 0; i < 2; i++) {
        setenv("CUDA_VISIBLE_DEVICES", i == 0 ? "" : "-1", 1);
        (void)ctw_gpu_none(&err);
        assert_says(&err, CTW_EUNSUP,
                    i == 0 ? "CUDA_VISIBLE_DEVICES is \"\"" : "CUDA_VISIBLE_DEVICES is \"-1\"");
    }
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    (void)ctw_gpu_missing(2, 2, false, &err);
    assert_says(&err, CTW_EINVAL, "because CUDA_VISIBLE_DEVICES is \"1,0\"");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_limits),    cmocka_unit_test(a_container_of_version_2),
        cmocka_unit_test(a_batch_job_below_its_limit), cmocka_unit_test(a_container_of_version_1),
        cmocka_unit_test(controllers_are_whole_names), cmocka_unit_test(this_process),
        cmocka_unit_test(gpus_that_are_hidden),
    };
    if (mkdtemp(root) == NULL)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    empty_root();
    rmdir(root);
    return failed;
}
