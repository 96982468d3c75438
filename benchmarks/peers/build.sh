#!/bin/sh
# Build the DBCSR drivers into the folder given as argument (default: benchmarks/build).
#
#   dbcsr_multiply       DBCSR as Debian packages it: each block product is one dgemm_ of the BLAS
#                        behind libblas.so.3
#   dbcsr_multiply_xsmm  the same, with small dgemm_ calls redirected to LIBXSMM's generated kernels
#                        at link time (--wrap); large ones go to the BLAS
#
# Needs: libdbcsr-dev libxsmm-dev libopenblas-dev liblapack-dev gfortran libopenmpi-dev openmpi-bin
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../build}
mkdir -p "$out"
CXX=${CXX:-mpicxx}
flags="-std=c++17 -O3 -march=native -fopenmp -Wall -Wextra -DOMPI_SKIP_MPICXX"
dbcsr="-ldbcsr_c -ldbcsr -llapack"
xsmm="-lxsmmf -lxsmmext -lxsmm"
system="-lblas $(mpifort --showme:link) -lgfortran -lgomp -lm -lpthread -ldl"
source="$here/dbcsr_multiply.cpp"

$CXX $flags "$source" -o "$out/dbcsr_multiply" $dbcsr $system
if ! $CXX $flags "$source" -o "$out/dbcsr_multiply_xsmm" -Wl,--wrap=dgemm_ $dbcsr $xsmm $system; then
    echo "dbcsr_multiply_xsmm was not built: libxsmm-dev is missing or does not link" >&2
fi
ls "$out"
