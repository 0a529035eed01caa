/*
 * Our own elementary functions, so that no score depends on the C library: the library's results
 * differ between versions, and between processors. Plain IEEE double arithmetic: the same bits from
 * every compiler on every machine. Rounded to float, a result is correctly rounded except for about
 * one argument in 10^8 or fewer.
 *
 * Errors are in ulp, steps of double at the result, over every argument; a subnormal result may be
 * off by one of its steps. NaN, infinities and overflow give what IEEE 754 specifies. Square roots
 * and fused multiply-adds come from the C library: they are correctly rounded everywhere.
 */
#ifndef CTW_KERNELS_MATH_H
#define CTW_KERNELS_MATH_H

double ctw_exp(double x);  /* 0.7 ulp */
double ctw_ln(double x);   /* 0.55 ulp */
double ctw_tanh(double x); /* 0.9 ulp */

/* 1 - erf(x). 1.7 ulp, even if the result is tiny. */
double ctw_erfc(double x);

/* x^y for finite x > 0 and |y| <= 2. 0.7 ulp */
double ctw_pow(double x, double y);

/* For every float, however large: the angles of RoPE are floats. 0.85 ulp */
void ctw_sincos(float x, double *sine, double *cosine);

#endif
