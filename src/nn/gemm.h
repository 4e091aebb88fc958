/* Matrix products through CBLAS: the one place that knows its calling convention. */
#ifndef EK_NN_GEMM_H
#define EK_NN_GEMM_H

#include <cblas.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#undef I /* of <complex.h>, which cblas.h includes: a shape letter here */

/* A row-major matrix in memory, its rows `stride` floats apart, taken transposed or as it lies. */
typedef struct ek_matrix {
    const float *data;
    size_t stride;
    bool transposed;
} ek_matrix;

/* out (m,n; rows out_stride apart) = alpha a (m,k) b (k,n) + beta out. Returns the multiplications and additions of the
 * product. */
static inline uint64_t ek_gemm(float *out, size_t out_stride, float alpha, ek_matrix a, ek_matrix b, float beta,
                               size_t m, size_t n, size_t k)
{
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                (blasint)m, (blasint)n, (blasint)k, alpha, a.data, (blasint)a.stride, b.data, (blasint)b.stride, beta,
                out, (blasint)out_stride);
    return (uint64_t)2 * m * n * k;
}

#endif
