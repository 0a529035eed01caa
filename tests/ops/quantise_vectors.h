/* Written by tests/tools/quantise_vectors.py with torch 2.15.0 and compressed-tensors 0.20.0. */
#ifndef CTW_TESTS_QUANTISE_VECTORS_H
#define CTW_TESTS_QUANTISE_VECTORS_H

enum { VECTOR_ROWS = 64, VECTOR_COLUMNS = 384 };

/* Digests in F32, BF16 and F16. */
static const struct {
    struct ctw_quantise how;
    uint64_t digest[3];
} vectors[] = {
    {{CTW_CODES_INT, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
     {0xd42d9835473b1cc7u, 0x7f595b425947a325u, 0x6698430068174325u}},
    {{CTW_CODES_INT, 4, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
     {0x066bd9ee24391e30u, 0x6c5e8e5a0250a325u, 0x979c354b0bfb8325u}},
    {{CTW_CODES_INT, 8, CTW_SCALE_DYNAMIC, true, 0, 0, 0, 0},
     {0xc30c5bccc3896624u, 0xeea454a612d3a325u, 0xc0e8a0f327a16325u}},
    {{CTW_CODES_INT, 8, CTW_SCALE_DYNAMIC, false, 128, 0, 0, 0},
     {0x2523594dac07c04eu, 0xa4d76f932951a325u, 0x0246ef801c57a325u}},
    {{CTW_CODES_INT, 4, CTW_SCALE_DYNAMIC, true, 32, 0, 0, 0},
     {0xcb360057a6afae29u, 0x8b9d8e897160a325u, 0x47bd8e638feae325u}},
    {{CTW_CODES_INT, 8, CTW_SCALE_STATIC, false, 0, 0.0311f, 0, 0},
     {0xa9745f1d9d57faf0u, 0xecfb868a9c51a325u, 0x13f51c8a0b4b2325u}},
    {{CTW_CODES_INT, 8, CTW_SCALE_STATIC, true, 0, 0.02f, -37, 0},
     {0xfda6dab1c354a08eu, 0xc65ec630b4b7a325u, 0x55443066ef4ea325u}},
    {{CTW_CODES_E4M3, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0},
     {0xe46981cb7f2780bcu, 0xfee7df1c3163a325u, 0x848e7b9e4a8ec325u}},
    {{CTW_CODES_E4M3, 8, CTW_SCALE_DYNAMIC, false, 128, 0, 0, 0},
     {0xed93953e8c02912du, 0x83b9ce930fa6a325u, 0xdbdac8252b022325u}},
    {{CTW_CODES_E4M3, 8, CTW_SCALE_STATIC, false, 0, 0.0123f, 0, 0},
     {0xc3adb21d59c1e332u, 0x7182c7ba2e0da325u, 0x959fdfba3640a325u}},
    {{CTW_CODES_E4M3, 8, CTW_SCALE_E8M0, false, 32, 0, 0, 0},
     {0xba4395146eb9a325u, 0x045de23d67f9a325u, 0xa3f79cedff79a325u}},
    {{CTW_CODES_E2M1, 4, CTW_SCALE_E8M0, false, 32, 0, 0, 0},
     {0xb5dfa618de79a325u, 0x75f10b6da8b9a325u, 0x1b61eb104739a325u}},
    {{CTW_CODES_E2M1, 4, CTW_SCALE_E4M3, false, 16, 0, 0, 713.5f},
     {0x9a72b8332b9dce8bu, 0xa1a49139e37fa325u, 0xe516687109918325u}},
};

#endif
