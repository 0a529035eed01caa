/* Memory that an operation uses while it runs. */
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

enum ctw_status ctw_cpu_scratch(struct ctw_cpu *cpu, size_t bytes, void **out, struct ctw_err *err)
{
    if (bytes > cpu->scratch_bytes) {
        ctw_free_aligned(cpu->scratch);
        cpu->scratch_bytes = 0;
        cpu->scratch = ctw_alloc_aligned(bytes);
        if (cpu->scratch == NULL)
            return ctw_fail(err, CTW_ENOMEM, "cpu: no memory for %zu bytes of scratch", bytes);
        cpu->scratch_bytes = bytes;
    }
    *out = cpu->scratch;
    return CTW_OK;
}
