// Time C = A B with DBCSR on a problem file written by problems.py.
//
//   dbcsr_multiply PROBLEM [--reps=7] [--budget=60]
//
// Prints one JSON line on rank 0. Element (i, j) of A and B is the hash of its position that problems.py
// uses, so the checksum, the sum of C(i, j) w(i, j), agrees with every other contender's. Repeating stops
// early when the budget (seconds) is spent, after three timed products at the earliest.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <mpi.h>
#include <omp.h>

#include <dbcsr.h>

namespace {

using Ints = std::vector<int32_t>;
using Offsets = std::vector<int64_t>;

constexpr int kLeastReps = 3;
constexpr int kA = 1, kB = 2, kWeights = 3;

struct Problem {
  Ints m, k, n;                     // tile sizes: rows, inner, columns
  Ints a_row, a_col, b_row, b_col;  // blocks, from 0
  int64_t seed = 0;
};

struct Options {
  std::string path;
  int reps = 7;
  double budget = 60;
};

// The process grid and this rank's place in it.
struct Grid {
  MPI_Comm comm = MPI_COMM_NULL;
  int ranks = 1, rank = 0;
  int dims[2] = {0, 0}, coord[2] = {0, 0};
};

// A matrix with what is needed to find its elements.
struct Matrix {
  dbcsr_distribution dist = nullptr;
  dbcsr_matrix handle = nullptr;
  Ints row_owner, col_owner;
  Offsets row_at, col_at;
};

Problem read_problem(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  char magic[8];
  if (!in.read(magic, 8) || std::memcmp(magic, "BSPMM001", 8) != 0)
    throw std::runtime_error("not a problem file: " + path);
  int64_t head[6];
  in.read(reinterpret_cast<char *>(head), sizeof head);
  Problem p;
  auto take = [&](Ints &values, int64_t count) {
    values.resize(count);
    in.read(reinterpret_cast<char *>(values.data()), count * sizeof(int32_t));
  };
  take(p.m, head[0]);
  take(p.k, head[1]);
  take(p.n, head[2]);
  take(p.a_row, head[3]);
  take(p.a_col, head[3]);
  take(p.b_row, head[4]);
  take(p.b_col, head[4]);
  p.seed = head[5];
  if (!in) throw std::runtime_error("truncated problem file: " + path);
  return p;
}

Options parse(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--reps=", 0) == 0) options.reps = std::atoi(word.c_str() + 7);
    else if (word.rfind("--budget=", 0) == 0) options.budget = std::atof(word.c_str() + 9);
    else options.path = word;
  }
  if (options.path.empty()) throw std::runtime_error("usage: dbcsr_multiply PROBLEM [--reps=7] [--budget=60]");
  return options;
}

// Uniform in [-0.5, 0.5): the finaliser of splitmix64.
inline double element(uint64_t stream, uint64_t position) {
  uint64_t z = position * 0x9E3779B97F4A7C15ull + stream;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return double(z >> 11) * 0x1.0p-53 - 0.5;
}

inline uint64_t stream_of(int64_t seed, int which) {
  return uint64_t(seed) * 0xD1342543DE82EF95ull + uint64_t(which) * 0x632BE59BD9B4E019ull;
}

Offsets offsets(const Ints &sizes) {
  Offsets at(sizes.size() + 1, 0);
  for (size_t i = 0; i < sizes.size(); ++i) at[i + 1] = at[i] + sizes[i];
  return at;
}

Ints round_robin(size_t count, int bins) {
  Ints owner(count);
  for (size_t i = 0; i < count; ++i) owner[i] = int(i % bins);
  return owner;
}

Grid make_grid() {
  Grid grid;
  MPI_Comm_size(MPI_COMM_WORLD, &grid.ranks);
  MPI_Dims_create(grid.ranks, 2, grid.dims);
  int periods[2] = {1, 1};
  MPI_Cart_create(MPI_COMM_WORLD, 2, grid.dims, periods, 0, &grid.comm);
  MPI_Comm_rank(grid.comm, &grid.rank);
  MPI_Cart_coords(grid.comm, grid.rank, 2, grid.coord);
  return grid;
}

Matrix make_matrix(const char *name, const Grid &grid, Ints &rows, Ints &cols) {
  Matrix matrix;
  matrix.row_owner = round_robin(rows.size(), grid.dims[0]);
  matrix.col_owner = round_robin(cols.size(), grid.dims[1]);
  matrix.row_at = offsets(rows);
  matrix.col_at = offsets(cols);
  c_dbcsr_distribution_new(&matrix.dist, grid.comm, matrix.row_owner.data(), int(rows.size()),
                           matrix.col_owner.data(), int(cols.size()));
  c_dbcsr_create_new(&matrix.handle, name, matrix.dist, dbcsr_type_no_symmetry, rows.data(), int(rows.size()),
                     cols.data(), int(cols.size()), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  return matrix;
}

void release(Matrix &matrix) {
  c_dbcsr_release(&matrix.handle);
  c_dbcsr_distribution_release(&matrix.dist);
}

// Calls visit(value, position) for each element this rank stores; DBCSR's blocks are column-major.
template <class F> int64_t each_element(const Matrix &matrix, F visit) {
  const uint64_t width = uint64_t(matrix.col_at.back());
  int64_t blocks = 0;
  dbcsr_iterator it = nullptr;
  c_dbcsr_iterator_start(&it, matrix.handle, nullptr, nullptr, nullptr, nullptr, nullptr);
  for (; c_dbcsr_iterator_blocks_left(it); ++blocks) {
    int i = -1, j = -1, number = -1, rows = -1, cols = -1;
    bool transposed = false;
    double *block = nullptr;
    c_dbcsr_iterator_next_2d_block_d(it, &i, &j, &block, &transposed, &number, &rows, &cols, nullptr, nullptr);
    for (int y = 0; y < cols; ++y)
      for (int x = 0; x < rows; ++x)
        visit(block[size_t(y) * rows + x], (matrix.row_at[i] + x) * width + matrix.col_at[j] + y);
  }
  c_dbcsr_iterator_stop(&it);
  return blocks;
}

void fill(Matrix &matrix, const Grid &grid, const Ints &rows, const Ints &cols, uint64_t stream) {
  Ints mine_row, mine_col;
  for (size_t e = 0; e < rows.size(); ++e)
    if (matrix.row_owner[rows[e]] == grid.coord[0] && matrix.col_owner[cols[e]] == grid.coord[1]) {
      mine_row.push_back(rows[e]);
      mine_col.push_back(cols[e]);
    }
  c_dbcsr_reserve_blocks(matrix.handle, mine_row.data(), mine_col.data(), int(mine_row.size()));
  each_element(matrix, [&](double &value, uint64_t position) { value = element(stream, position); });
  c_dbcsr_finalize(matrix.handle);
}

// Seconds of one product: the slowest rank's.
double multiply(const Grid &grid, const Matrix &a, const Matrix &b, Matrix &c) {
  long long flops = 0;
  MPI_Barrier(grid.comm);
  const double start = MPI_Wtime();
  c_dbcsr_multiply_d(dbcsr_no_transpose, dbcsr_no_transpose, 1.0, a.handle, b.handle, 0.0, c.handle, nullptr,
                     nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, &flops);
  MPI_Barrier(grid.comm);
  const double mine = MPI_Wtime() - start;
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, grid.comm);
  return slowest;
}

std::vector<double> time_products(const Options &options, const Grid &grid, const Matrix &a, const Matrix &b,
                                  Matrix &c) {
  double spent = multiply(grid, a, b, c);  // untimed: kernel generation, page faults
  std::vector<double> seconds;
  while (int(seconds.size()) < options.reps && (spent < options.budget || int(seconds.size()) < kLeastReps)) {
    seconds.push_back(multiply(grid, a, b, c));
    spent += seconds.back();
  }
  return seconds;
}

double checksum(const Grid &grid, const Matrix &c, uint64_t stream, int64_t &blocks) {
  double mine = 0, total = 0;
  int64_t mine_blocks = each_element(
      c, [&](const double &value, uint64_t position) { mine += value * element(stream, position); });
  MPI_Reduce(&mine, &total, 1, MPI_DOUBLE, MPI_SUM, 0, grid.comm);
  MPI_Reduce(&mine_blocks, &blocks, 1, MPI_INT64_T, MPI_SUM, 0, grid.comm);
  return total;
}

void print_result(const Grid &grid, const std::vector<double> &seconds, double sum, int64_t blocks) {
  if (grid.rank != 0) return;
  std::printf("{\"ranks\": %d, \"threads\": %d, \"grid\": \"%dx%d\", \"blocks\": %lld, \"checksum\": %.15e, "
              "\"seconds\": [",
              grid.ranks, omp_get_max_threads(), grid.dims[0], grid.dims[1], (long long)blocks, sum);
  for (size_t r = 0; r < seconds.size(); ++r) std::printf("%s%.9f", r ? ", " : "", seconds[r]);
  std::printf("]}\n");
  std::fflush(stdout);
}

void run(const Options &options) {
  Problem p = read_problem(options.path);
  Grid grid = make_grid();
  c_dbcsr_init_lib(MPI_COMM_WORLD, nullptr);
  Matrix a = make_matrix("A", grid, p.m, p.k), b = make_matrix("B", grid, p.k, p.n),
         c = make_matrix("C", grid, p.m, p.n);
  fill(a, grid, p.a_row, p.a_col, stream_of(p.seed, kA));
  fill(b, grid, p.b_row, p.b_col, stream_of(p.seed, kB));
  c_dbcsr_finalize(c.handle);
  const std::vector<double> seconds = time_products(options, grid, a, b, c);
  int64_t blocks = 0;
  const double sum = checksum(grid, c, stream_of(p.seed, kWeights), blocks);
  print_result(grid, seconds, sum, blocks);
  for (Matrix *matrix : {&a, &b, &c}) release(*matrix);
  c_dbcsr_finalize_lib();
  MPI_Comm_free(&grid.comm);
}

}  // namespace

int main(int argc, char **argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  try {
    run(parse(argc, argv));
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return 0;
}
