/* The rotation of queries and keys: frequencies, and cosines and sines of a position. */
#include <math.h>

#include "kernels/math.h"
#include "worker/model/rope/rope.h"

/*
 * theta^(2i / rot_dim) in fp32, rounded once. (torch's own vectorised pow is off by one unit in the
 * last place for about one value in a hundred; which values depends on the machine.)
 */
static float position_scale(const struct ctw_rope_params *p, int rot_dim, int i)
{
    float exponent = (float)(2 * i) / (float)rot_dim;
    return (float)ctw_pow((double)(float)p->theta, (double)exponent);
}

/* torch computes scalar / tensor as reciprocal(tensor) * scalar. */
static float divide_scalar(double scalar, float tensor)
{
    return 1.0f / tensor * (float)scalar;
}

static float llama3(const struct ctw_rope_params *p, float inv_freq)
{
    const float factor = (float)p->factor, low = (float)p->low_freq_factor;
    const float low_wavelen = (float)(p->original_length / p->low_freq_factor);
    const float high_wavelen = (float)(p->original_length / p->high_freq_factor);
    float wavelen = divide_scalar(2 * 3.141592653589793, inv_freq);
    float scaled = wavelen > low_wavelen ? inv_freq / factor : inv_freq;
    if (wavelen < high_wavelen || wavelen > low_wavelen || low_wavelen == high_wavelen)
        return scaled; /* equal factors (Llama 4): nothing is in between */
    float smooth = (divide_scalar(p->original_length, wavelen) - low) /
                   (float)(p->high_freq_factor - p->low_freq_factor);
    return (1.0f - smooth) * scaled / factor + smooth * scaled;
}

/* The dimension that rotates n_rotations times within the original length. */
static double correction_dim(const struct ctw_rope_params *p, int rot_dim, double n_rotations)
{
    return rot_dim * ctw_ln(p->original_length / (n_rotations * 2 * 3.141592653589793)) /
           (2 * ctw_ln(p->theta));
}

static void yarn(const struct ctw_rope_params *p, int rot_dim, float *inv_freq)
{
    double low = correction_dim(p, rot_dim, p->beta_fast);
    double high = correction_dim(p, rot_dim, p->beta_slow);
    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < rot_dim - 1 ? high : rot_dim - 1;
    if (low == high)
        high += 0.001;
    for (int i = 0; i < rot_dim / 2; i++) {
        float scale = position_scale(p, rot_dim, i);
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        float keep = 1.0f - ramp;
        float interpolated = 1.0f / ((float)p->factor * scale);
        inv_freq[i] = interpolated * (1.0f - keep) + 1.0f / scale * keep;
    }
}

/* 1 / (factors[i] theta^(2i / rot_dim)) */
static void longrope(const struct ctw_rope_params *p, const struct ctw_json_node *factors,
                     int rot_dim, float *inv_freq)
{
    const struct ctw_json_node *m = ctw_json_first(factors);
    for (int i = 0; i < rot_dim / 2 && m != NULL; i++, m = ctw_json_next(m)) {
        double factor = 1;
        if (ctw_json_as_double(m, &factor, NULL) != CTW_OK)
            factor = 1; /* not reached: ctw_rope_read() checked the numbers */
        inv_freq[i] = 1.0f / ((float)factor * position_scale(p, rot_dim, i));
    }
}

static void proportional(const struct ctw_rope_params *p, int rot_dim, float *inv_freq)
{
    int n = (int)floor(p->partial_factor * rot_dim / 2);
    for (int i = 0; i < rot_dim / 2; i++)
        inv_freq[i] = i < n ? 1.0f / position_scale(p, rot_dim, i) / (float)p->factor : 0.0f;
}

void ctw_rope_long_frequencies(const struct ctw_rope_params *p, int rot_dim, float *inv_freq)
{
    longrope(p, p->long_factor, rot_dim, inv_freq);
}

void ctw_rope_frequencies(const struct ctw_rope_params *p, int rot_dim, float *inv_freq)
{
    if (p->type == CTW_ROPE_YARN) {
        yarn(p, rot_dim, inv_freq);
        return;
    }
    if (p->type == CTW_ROPE_LONGROPE) {
        longrope(p, p->short_factor, rot_dim, inv_freq);
        return;
    }
    if (p->type == CTW_ROPE_PROPORTIONAL) {
        proportional(p, rot_dim, inv_freq);
        return;
    }
    for (int i = 0; i < rot_dim / 2; i++) {
        float f = 1.0f / position_scale(p, rot_dim, i);
        inv_freq[i] = p->type == CTW_ROPE_LINEAR   ? f / (float)p->factor
                      : p->type == CTW_ROPE_LLAMA3 ? llama3(p, f)
                                                   : f;
    }
}

void ctw_rope_row(const float *inv_freq, int rot_dim, float scale, int64_t position, float *row)
{
    int half = rot_dim / 2;
    for (int i = 0; i < half; i++) {
        double sine, cosine;
        ctw_sincos((float)position * inv_freq[i], &sine, &cosine);
        row[i] = (float)cosine * scale;
        row[half + i] = (float)sine * scale;
    }
}
