/* Made by tests/tools/native_vectors.py; do not edit. */
static const struct transposed_case gptq_cases[] = {
    {"gptq 4 bits", 4, true, true, false, 32, 40, 320,
     "1854b0894e9800d3768e4f6e08511eed3307319ec2e12374f14b33f1eb8121c9"},
    {"gptq 4 bits, borrowing zero points", 4, true, false, false, 64, 48, 640,
     "c7630f731c4ef02f9229d8db6b43070b729dd94ec7fd4dd60c52793d962fd1e4"},
    {"gptq 4 bits, version 2, activation order", 4, false, false, true, 32, 24, 288,
     "830bde9b4a52b4979f51f9613f71136573494e9f458dda961d3f87366b86b5cd"},
    {"gptq 2 bits, borrowing zero points", 2, true, false, false, 16, 32, 272,
     "eeb71b14a1d46b96f51c39bc876fbf9dd061fbc0b78f5154b4e09a1679350285"},
    {"gptq 3 bits", 3, true, false, false, 32, 64, 288,
     "81fcc9439253876fa6935ffd3752026e357cbfbfe419002d5c08f1a1f4ff104f"},
    {"gptq 3 bits, version 2, activation order", 3, false, false, true, 96, 32, 576,
     "2855b35b40f02043993ca8acb19800a6724d6ae4122345e40d19bcb3fa7142aa"},
    {"gptq 8 bits, one group", 8, true, false, false, 0, 20, 304,
     "022f42d401fbd4c63041618e41836d498fc3ae57fcf5bd534330227adc2bbb8b"},
};

static const struct transposed_case awq_cases[] = {
    {"awq", 4, false, false, false, 64, 48, 576,
     "457a4632b8cf6089bcb299f5d82899f85c40199335f1c0ec44ff67162ed16b46"},
    {"awq, one group", 4, false, false, false, 0, 16, 300,
     "401b5e2d31de121f116f3bbead378d97437d34b658332abb75104730367a10ed"},
};

static const struct fp8_case fp8_cases[] = {
    {"fp8 blocks", CTW_F32, 128, 128, 256, 384,
     "f990a0f1b62aa00e9c54521b1ead87f18fd67ef25cf19ed250ccb3ace0e564ea"},
    {"fp8 matrix", CTW_F32, 0, 0, 21, 333,
     "8206af187ddc410c34873f7592652c36c6bb80c1f18e68479edd3a856c493b4b"},
    {"fp8 blocks, exponents", CTW_F8_E8M0, 32, 32, 96, 352,
     "9c73b1de04d453b64148551f7bc2f46e3da4d952a4f70a48576cf829063a3f5b"},
    {"fp8 blocks, bytes", CTW_U8, 24, 40, 72, 600,
     "a6cf6bee9ead1dfd226a078b59d2d9f47136ca97dd65a0cf3942710ebf4d5a96"},
    {"fp8 matrix, exponent", CTW_F8_E8M0, 0, 0, 21, 333,
     "3947950334910b4c80d94d3dc0f50552991468fd02347a95aacb63934e90db0b"},
    {"fp8 rows of 32", CTW_F8_E8M0, 1, 32, 21, 320,
     "d5e830a35b409e8c7d75cdc38a7cc5f08f3e92315e2183b36a615c90d8a2c075"},
};

static const struct nvfp4_case modelopt_cases[] = {
    {"modelopt nvfp4", 24, 368, 0.00031f,
     "0f9722b6dd557be83b6ce47af48c325e506fb2bb23a89ac5df94430b744b18df"},
    {"modelopt nvfp4, large factor", 9, 1040, 37.25f,
     "053028b9e847f24854afb2cea92610cc32f663737c3db6c49a6ecb8c0d7c8744"},
};
