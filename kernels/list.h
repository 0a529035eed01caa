/*
 * The operations. A new operation is a header kernels/NAME.h with struct ctw_op_NAME, its checked
 * call in kernels/NAME.c, its definition in cpu/c_NAME.c, its kernels in cuda/NAME.cu, its operands
 * in tests/service/fake_device_NAME.c, and one line here. X(name): the call is `ctw_name`, the
 * CPU's operation `ctw_cpu_name`, the GPU's `ctw_cuda_name`. From this list come their
 * declarations, the members of struct ctw_backend_ops and each backend's table, so a backend
 * without an operation does not link. Products, which use weights decoded ahead, are not in the
 * list: backend.h declares them.
 */
#ifndef CTW_KERNELS_LIST_H
#define CTW_KERNELS_LIST_H

#define CTW_OPERATIONS(X)                                                                          \
    X(decode)                                                                                      \
    X(embed)                                                                                       \
    X(norm)                                                                                        \
    X(act)                                                                                         \
    X(quantise)                                                                                    \
    X(rotate)                                                                                      \
    X(qkv)                                                                                         \
    X(latent)                                                                                      \
    X(attention)                                                                                   \
    X(turn)                                                                                        \
    X(pool)                                                                                        \
    X(pool_attention)                                                                              \
    X(gate)                                                                                        \
    X(conv)                                                                                        \
    X(ssm)                                                                                         \
    X(lru)                                                                                         \
    X(delta)                                                                                       \
    X(index)                                                                                       \
    X(blocks)                                                                                      \
    X(collapse)                                                                                    \
    X(expand)                                                                                      \
    X(head)                                                                                        \
    X(divergence)                                                                                  \
    X(difference)                                                                                  \
    X(blend)                                                                                       \
    X(ngram_gate)                                                                                  \
    X(altup)                                                                                       \
    X(route)                                                                                       \
    X(group)

#endif
