/* Made by tests/tools/bnb_vectors.py; do not edit. */
static const struct four_case four_cases[] = {
    {"nf4", CTW_BF16, false, false, 64, 8, 320,
     "0094af7156392b1f4f6db87551036577d65ddc62000cfd1c074d59438274bee8"},
    {"nf4", CTW_F16, false, false, 128, 5, 384,
     "e5640ec61a1ae9f687b06d18d3d747408229df2a00cf9442a17387d8f0a9b3b7"},
    {"nf4", CTW_F32, false, true, 64, 70, 512,
     "c0efc8e30893a55b55f0d7fb0f18464055ed64fd8c9280a4c47b701838fce199"},
    {"nf4, nested", CTW_BF16, false, true, 64, 72, 320,
     "ab64a031965789bdc6581169eae2295304413811ae870597034c088bb45d5a87"},
    {"fp4", CTW_BF16, true, false, 64, 6, 576,
     "77d045a126b1244646ae3707d3e5a7c67c24cd566df2a30c31b961eeb6d5111b"},
    {"fp4, nested", CTW_F16, true, true, 32, 33, 288,
     "cdf16c68ec80c355caf1a6c4da1eaea43a73c7c6dab391432a4369d7ea4906ea"},
    {"blocks across rows", CTW_BF16, false, false, 64, 7, 102,
     "61cad3159b3cd4666b598d7b4e208c7be2b85c8dc5a2135e250eb27e8fe837fe"},
    {"blocks of several rows", CTW_F32, true, true, 4096, 21, 530,
     "e5b05abb014a46bce135a49850f6983dfd2a0ae4195f138b65df5897fb4602d8"},
};

static const char int8_sha256[] =
    "ecbdd41c6e14db49fc13c3d2b02b1650661d3b77ef6e1dae9bb9cc2709470771"; /* [9, 333] */
