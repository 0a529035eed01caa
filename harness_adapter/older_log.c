/* SQLite's full-text search, which the worker does not use, calls log(), and the linker takes the symbol
 * of glibc 2.29. The wheel's program takes the older symbol, and so runs with glibc 2.28. */
__asm__(".symver older_log, log@GLIBC_2.2.5");
double older_log(double x);
double __wrap_log(double x);

double __wrap_log(double x)
{
    return older_log(x);
}
