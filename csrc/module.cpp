// SPDX-License-Identifier: Apache-2.0
// Registration: NumPy tables in, kernels out. Addresses in a table were checked by ldpkernels/inputs/spans.py.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chacha.h"
#include "cpu/detect.h"
#include "cpu/dispatch.h"
#include "cpu/parallel.h"
#include "cpu/reduce.h"
#include "cpu/rotation.h"
#include "cpu/select.h"
#include "cpu/tally.h"
#include "crc32c.h"
#include "philox.h"
#include "plain.h"
#include "tables.h"

namespace ldpk {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style>;

// The best first. Asked once: CPUID is slow under a hypervisor.
const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> available = [] {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    const X86 machine = this_x86();
    if (machine.avx512()) found.push_back(&kAvx512Kernels);
    if (machine.avx2()) found.push_back(&kAvx2Kernels);
#elif defined(__aarch64__)
    found.push_back(&kNeonKernels);
#endif
    found.push_back(&kScalarKernels);
    return found;
  }();
  return available;
}

const Kernels& kernels_named(const std::string& name) {
  for (const Kernels* k : available_kernels()) {
    if (name.empty() || name == k->name) return *k;
  }
  throw std::invalid_argument("this machine has no '" + name + "' kernels");
}

Key key_of(const Table<uint32_t>& words) {
  if (words.size() != 2 && words.size() != 8) throw std::invalid_argument("a key has 2 or 8 words");
  Key key{};
  key.size = static_cast<int32_t>(words.size());
  memcpy(key.words, words.data(), words.size() * 4);
  return key;
}

// A table of words, or the same as bytes, which are made in half the time.
Key key_of(const py::object& words) {
  if (!PyBytes_CheckExact(words.ptr())) return key_of(words.cast<Table<uint32_t>>());
  const std::string_view bytes = words.cast<std::string_view>();
  if (bytes.size() != 8 && bytes.size() != 32) throw std::invalid_argument("a key has 8 or 32 bytes");
  static_assert(std::endian::native == std::endian::little);
  Key key{};
  key.size = static_cast<int32_t>(bytes.size() / 4);
  memcpy(key.words, bytes.data(), bytes.size());
  return key;
}

// Elements a task: a multiple of every group, and small enough for the second-level cache.
constexpr int64_t kTask = int64_t{1} << 16;

// task(span, begin, end) over all chunks of all spans.
template <class Task>
void for_chunks(const Span* spans, int64_t count, int64_t chunk, int64_t threads, Task task) {
  std::vector<int64_t> first_task(count + 1, 0);
  for (int64_t s = 0; s < count; ++s) first_task[s + 1] = first_task[s] + divided_up(spans[s].numel, chunk);
  parallel_for(first_task[count], threads, [&](int64_t t) {
    const int64_t s = std::upper_bound(first_task.begin(), first_task.end(), t) - first_task.begin() - 1;
    const int64_t begin = (t - first_task[s]) * chunk;
    task(s, begin, std::min(begin + chunk, spans[s].numel));
  });
}

// run(span, begin, end, shared) over all spans on this thread.
template <class Run>
void run_alone(const Span* spans, int64_t count, Run run) {
  const DefaultFloatEnvironment environment;
  Shared shared;
  for (int64_t i = 0; i < count; ++i) {
    const Span& span = spans[i];
    if (span.numel > kSmallSpan) {
      for (int64_t begin = 0; begin < span.numel; begin += kTask)
        run(i, begin, std::min(begin + kTask, span.numel), nullptr);
      continue;
    }
    if (static_cast<uint64_t>(span.first) >= shared.until) {  // as far as small spans follow one another
      int64_t last = i;
      const auto follows = [&](const Span& next, const Span& one) {
        const int64_t gap = next.first - (one.first + one.numel);
        return next.numel <= kSmallSpan && gap >= 0 && gap < 8;
      };
      while (last + 1 < count && follows(spans[last + 1], spans[last])) ++last;
      shared.until = spans[last].first + spans[last].numel;
    }
    if (span.numel > 0) run(i, 0, span.numel, &shared);
  }
}

struct OnEveryCpu {
  template <class Action>
  static constexpr bool has() {
    return true;
  }
};

// A mechanism's kernel over all spans, with one law for each or one for all.
void launch(const std::string& mechanism, const std::string& output, const py::array& spans, const py::array& laws,
            const py::object& key_words, const std::string& isa, int64_t threads) {
  with_action(mechanism, output, OnEveryCpu{}, [&](auto action, size_t number) {
    using Law = typename decltype(action)::Entry::Law;
    if (laws.size() != spans.size() && laws.size() != 1) throw std::invalid_argument("one law for each span");
    const Key key = key_of(key_words);
    const auto run_chunk = kernels_named(isa).actions[number];
    const Span* s = records<Span>(spans, "spans");
    const Law* law = records<Law>(laws, "laws");
    const int64_t count = spans.size(), step = laws.size() > 1 ? 1 : 0;
    py::gil_scoped_release unlocked;
    const auto run = [&](int64_t i, int64_t begin, int64_t end, Shared* shared) {
      run_chunk(s[i], law + i * step, key, begin, end, shared);
    };
    if (threads <= 1 && count > 1) return run_alone(s, count, run);
    for_chunks(s, count, kTask, threads, [&](int64_t i, int64_t begin, int64_t end) { run(i, begin, end, nullptr); });
  });
}

Table<uint32_t> keystream(const Table<uint32_t>& key_words, uint32_t stream, uint64_t first_block, int64_t blocks,
                          const std::string& isa) {
  const Key key = key_of(key_words);
  Table<uint32_t> out(blocks * (key.size == ChaCha20::key_words ? ChaCha20::block_words : Philox::block_words));
  kernels_named(isa).keystream(key, stream, first_block, blocks, out.mutable_data());
  return out;
}

// One cipher block at a counter of one's own: the published test vectors, and the derivation of keys.
Table<uint32_t> cipher_block(const Table<uint32_t>& key_words, const Table<uint32_t>& counter) {
  if (counter.size() != 4) throw std::invalid_argument("a counter has 4 words");
  const Key key = key_of(key_words);
  const uint32_t* c = counter.data();
  const uint64_t index = c[0] | uint64_t{c[1]} << 32;
  uint32_t words[16];
  if (key.size == ChaCha20::key_words) {
    ChaCha20::block(key, c[2], c[3], index, words);
    return Table<uint32_t>(16, words);
  }
  uint32_t(&four)[4] = reinterpret_cast<uint32_t(&)[4]>(words);
  Philox::block(key, c[2], c[3], index, four);
  return Table<uint32_t>(4, words);
}

std::vector<Summary> summarize_spans(const py::array& spans, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  std::vector<std::vector<Summary>> parts(count);
  for (int64_t i = 0; i < count; ++i) parts[i].resize(divided_up(s[i].numel, kSummaryPart));
  py::gil_scoped_release unlocked;
  for_chunks(s, count, kSummaryPart, threads, [&](int64_t i, int64_t begin, int64_t end) {
    parts[i][begin / kSummaryPart] = kernels.summarize(s[i], begin, end);
  });
  std::vector<Summary> sums(count);
  for (int64_t i = 0; i < count; ++i) {
    for (const Summary& part : parts[i]) sums[i].add(part);
  }
  return sums;
}

std::vector<double> select(const py::array& spans, const std::vector<int64_t>& ranks, int64_t threads) {
  if (threads < 1) throw std::invalid_argument("at least one thread");
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  py::gil_scoped_release unlocked;
  return order_statistics(s, count, ranks, threads);
}

void tally_add(Tally& tally, const std::vector<Bytes>& reports, int64_t threads) {
  std::vector<const uint8_t*> pointers;
  for (const Bytes& report : reports) {
    if (report.size() != tally.bytes()) throw std::invalid_argument("a report of another size");
    pointers.push_back(report.data());
  }
  py::gil_scoped_release unlocked;
  tally.add(pointers, threads);
}

template <class Float>
void tally_decode(const Tally& tally, int64_t first, double offset, double step, Table<Float> out, int64_t threads) {
  if (first % 8 || first < 0 || (first + out.size() + 7) / 8 > tally.bytes())
    throw std::invalid_argument("elements outside the tally");
  Float* p = out.mutable_data();
  const int64_t n = out.size();
  py::gil_scoped_release unlocked;
  tally.decode(first, n, offset, step, p, threads);
}

Bytes tally_planes(const Tally& tally) {
  const auto planes = [&] {
    py::gil_scoped_release unlocked;
    return tally.planes();
  }();
  Bytes out(std::vector<py::ssize_t>{static_cast<int64_t>(planes.size()), tally.bytes()});
  uint8_t* to = out.mutable_data();
  for (const auto& plane : planes) to = std::copy(plane.begin(), plane.end(), to);
  return out;
}

void tally_restore(Tally& tally, int64_t count, const Bytes& planes) {
  if (planes.ndim() != 2 || planes.shape(1) != tally.bytes()) throw std::invalid_argument("planes of another size");
  const uint8_t* data = planes.data();
  const int64_t n = planes.shape(0);
  py::gil_scoped_release unlocked;
  tally.restore(count, data, n);
}

void tally_merge(Tally& into, const Tally& from) {
  if (into.bytes() != from.bytes()) throw std::invalid_argument("a tally of another size");
  py::gil_scoped_release unlocked;
  into.merge(from);
}

int64_t tally_count(const Tally& tally) {
  py::gil_scoped_release unlocked;
  return tally.count();
}

uint32_t crc32c(const py::buffer& data, const std::string& way) {
  const py::buffer_info bytes = data.request();
  if (bytes.itemsize != 1 || bytes.ndim != 1 || (bytes.size > 1 && bytes.strides[0] != 1))
    throw std::invalid_argument("a digest is of contiguous bytes");
  const auto* p = static_cast<const uint8_t*>(bytes.ptr);
  py::gil_scoped_release unlocked;
  if (way == "table") return Crc32c::by_table(p, bytes.size);
#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)
  if (way == "instruction" && Crc32c::has_instruction()) return Crc32c::by_instruction(p, bytes.size);
#endif
  return Crc32c::of(p, bytes.size);
}

// Adds one-byte reports to counters. A chunk is summed in 16 bits, which 257 reports cannot overflow.
template <class Counter>
void add_bytes(Table<Counter> counters, const std::vector<Bytes>& reports, int64_t threads) {
  constexpr int64_t chunk = 1 << 13;
  const int64_t n = counters.size();
  std::vector<const uint8_t*> pointers;
  for (const Bytes& report : reports) {
    if (report.size() != n) throw std::invalid_argument("a report of another size");
    pointers.push_back(report.data());
  }
  Counter* sums = counters.mutable_data();
  py::gil_scoped_release unlocked;
  parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
    const int64_t begin = t * chunk, size = std::min(chunk, n - begin);
    for (size_t first = 0; first < pointers.size(); first += 257) {
      uint16_t partial[chunk] = {};
      for (size_t i = first; i < std::min(first + 257, pointers.size()); ++i) {
        for (int64_t e = 0; e < size; ++e) partial[e] += pointers[i][begin + e];
      }
      for (int64_t e = 0; e < size; ++e) sums[begin + e] += partial[e];
    }
  });
}

// Labels and keeps of votes [parties, columns]. False if a vote is none of the classes.
template <class Int>
bool majority_vote(const Table<Int>& votes, int64_t classes, Table<Int> labels, Table<bool> keep,
                   const std::string& isa, int64_t threads) {
  constexpr int64_t chunk = 1 << 14;
  if (votes.ndim() != 2 || labels.size() != votes.shape(1) || keep.size() != votes.shape(1))
    throw std::invalid_argument("votes are [parties, columns], labels and keeps [columns]");
  if (classes < 1) throw std::invalid_argument("no classes");
  const auto run_chunk = kernels_named(isa).majority;
  const int64_t n = votes.shape(1);
  const Ballots ballots{
      votes.data(), labels.mutable_data(), reinterpret_cast<uint8_t*>(keep.mutable_data()), votes.shape(0), n, classes,
      sizeof(Int)};
  std::atomic<bool> ok{true};
  py::gil_scoped_release unlocked;
  parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
    if (!run_chunk(ballots, t * chunk, std::min((t + 1) * chunk, n))) ok = false;
  });
  return ok;
}

// The sum of squares of each row of each span, as [rows, spans].
Table<double> clipped_squares(const py::array& spans, int64_t rows, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  Table<double> squares(std::vector<py::ssize_t>{rows, spans.size()});
  double* out = squares.mutable_data();
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  py::gil_scoped_release unlocked;
  for (int64_t i = 0; i < count; ++i) square_rows(kernels, s[i], rows, threads, out + i, count);
  return squares;
}

// Scales from norms, [rows, bounds] both.
Table<double> clipped_scales(const Table<double>& norms, const Table<double>& bounds, const std::string& isa,
                             int64_t threads) {
  if (norms.ndim() != 2 || norms.shape(1) != bounds.size()) throw std::invalid_argument("one bound for each column");
  const Kernels& kernels = kernels_named(isa);
  Table<double> scales(std::vector<py::ssize_t>{norms.shape(0), norms.shape(1)});
  const double* norm = norms.data();
  double* scale = scales.mutable_data();
  const int64_t rows = norms.shape(0), layers = bounds.size();
  py::gil_scoped_release unlocked;
  scale_rows(kernels, bounds.data(), layers, rows, threads, norm, scale);
  return scales;
}

// One scale for each row, or one for each row and span. With a bound above 0, norms of the rows in their place.
void clipped_sums(const py::array& spans, const Table<double>& scales, double bound, double stddev, double divisor,
                  double unit, int64_t grid_std, const Table<uint32_t>& key_words, const std::string& isa,
                  int64_t threads) {
  if (scales.ndim() != 2 || (scales.shape(1) != 1 && scales.shape(1) != spans.size()))
    throw std::invalid_argument("one scale for each row, or for each row and span");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const ClippedNoise noise{stddev, divisor, unit, grid_std};
  const Span* s = records<Span>(spans, "spans");
  const double* scale = scales.data();
  const int64_t count = spans.size(), rows = scales.shape(0), stride = scales.shape(1);
  py::gil_scoped_release unlocked;
  for (int64_t i = 0; i < count; ++i)
    sum_columns(kernels, s[i], {scale + (stride > 1 ? i : 0), stride, bound}, rows, noise, key, threads);
}

// Spans of weights to integers in their `out`; the exact sum of all squares, as (low, high) with low + 2^32 high. No
// key words for cutting towards zero.
std::pair<uint64_t, uint64_t> lattice_quantise(const py::array& spans, double scale, const Table<uint32_t>& key_words,
                                               uint32_t stream, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_words.size() ? key_of(key_words) : Key{};
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  std::atomic<uint64_t> low{0}, high{0};
  py::gil_scoped_release unlocked;
  for_chunks(s, count, kTask, threads, [&](int64_t i, int64_t begin, int64_t end) {
    const Squares part = kernels.quantise(s[i], scale, key.size ? &key : nullptr, stream, begin, end);
    low += part.low;
    high += part.high;
  });
  return {low, high};
}

// Integers at the spans' `data`, with noise, to their `out`: modulo 2^bits as uint32, or with 0 bits times `unit`.
void lattice_noise_integers(const py::array& spans, const Table<uint32_t>& high, const Table<uint64_t>& low,
                            const Table<uint32_t>& guide, int32_t shift, const Table<uint32_t>& key_words, int32_t bits,
                            double unit, const std::string& isa, int64_t threads) {
  if (high.size() < 1 || high.size() != low.size() || guide.size() != 1024 || high.data()[high.size() - 1] != 1u << 24)
    throw std::invalid_argument("a table of another shape");
  if (shift < 0 || shift > 16 || bits < 0 || bits > 32) throw std::invalid_argument("shift or bits");
  for (int64_t i = 0; i < guide.size(); ++i) {
    if (guide.data()[i] >= high.size()) throw std::invalid_argument("a guide beyond its table");
  }
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const NoiseTable table{high.data(), low.data(), guide.data(), shift};
  const LatticeOut to{bits == 0 ? 0u : 0xffffffffu >> (32 - bits), unit};
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  py::gil_scoped_release unlocked;
  for_chunks(s, count, kTask, threads,
             [&](int64_t i, int64_t begin, int64_t end) { kernels.noise_integers(table, key, s[i], to, begin, end); });
}

// The Walsh-Hadamard transform of a power of two of numbers in place, with signs from keystream 0 of the key.
void rotate(Table<float> x, const Table<uint32_t>& key_words, bool inverse, const std::string& isa, int64_t threads) {
  const int64_t n = x.size();
  if (n < 1 || (n & (n - 1)) != 0) throw std::invalid_argument("a rotation is of a power of two of numbers");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const int64_t block = key.size == ChaCha20::key_words ? ChaCha20::block_words : Philox::block_words;
  float* data = x.mutable_data();
  py::gil_scoped_release unlocked;
  const int64_t blocks = divided_up(divided_up(n, 32), block);
  const std::unique_ptr<uint32_t[]> signs(new uint32_t[blocks * block]);
  int levels = 0;
  while (int64_t{1} << levels < n) ++levels;
  const float root_half = levels % 2 ? 0x1.6a09e6p-1f : 1.0f;
  const Rotation rotation{data, signs.get(), levels, !inverse, std::ldexp(root_half, -(levels / 2))};
  // After the signs, passes over memory: one up to 2^16 numbers, two up to 2^24, three up to 2^32.
  constexpr int64_t blocks_a_task = 1 << 10;
  int later = static_cast<int>(divided_up(std::max(levels - kLargeBlockLevels, 0), kColumnLevels));
  std::vector<int> starts{0, later == 0 ? levels : std::max(kBlockLevels, levels - later * kColumnLevels)};
  for (; later > 0; --later)
    starts.push_back(starts.back() + static_cast<int>(divided_up(levels - starts.back(), later)));
  std::vector<int64_t> tasks{divided_up(blocks, blocks_a_task), n >> starts[1]};
  for (size_t i = 1; i + 1 < starts.size(); ++i) tasks.push_back((n >> (starts[i + 1] - starts[i])) / kStrip);
  parallel_passes(tasks, threads, [&](size_t pass, int64_t task) {
    if (pass > 0) return kernels.rotate_task(rotation, starts[pass - 1], starts[pass] - starts[pass - 1], task);
    const int64_t first = task * blocks_a_task;
    kernels.keystream(key, 0, first, std::min(blocks_a_task, blocks - first), signs.get() + first * block);
  });
}

// Both passes of a matrix of few columns at once. Writes the rows' norms where there is room for them.
void narrow_sums(const py::array& spans, int64_t rows, std::optional<Table<double>> norms, double bound, double stddev,
                 double divisor, double unit, int64_t grid_std, const py::object& key_words, const std::string& isa,
                 int64_t threads) {
  const Span* s = records<Span>(spans, "spans");
  if (spans.size() != 1 || s->numel < 1 || s->numel > kNarrowColumns)
    throw std::invalid_argument("one matrix of few columns");
  if (norms && norms->size() != rows) throw std::invalid_argument("one norm for each row");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const ClippedNoise noise{stddev, divisor, unit, grid_std};
  double* out = norms ? norms->mutable_data() : nullptr;
  py::gil_scoped_release unlocked;
  sum_narrow(kernels, *s, bound, rows, noise, key, threads, out);
}

// A free-threaded Python takes its lock back for this module, which does not say that it can do without: nothing else
// keeps another thread from resizing an array that a call reads. Calls give the lock up for their work, so the objects
// of this module have locks of their own.
PYBIND11_MODULE(_native, m) {
  m.doc() = "The C++ kernels of ldpkernels. The public functions are in the package.";
  m.attr("SPAN") = dtype_of<Span>();
  py::dict laws;
  Registry::each(
      [&](auto entry) { laws[py::str(std::string(entry.name))] = dtype_of<typename decltype(entry)::Law>(); });
  m.attr("LAWS") = laws;

  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  m.def("launch", launch, py::arg("mechanism"), py::arg("output"), py::arg("spans"), py::arg("laws"),
        py::arg("key_words"), py::arg("isa"), py::arg("threads"));
  // os.environ encodes and decodes at every look; what it sets is here too.
  m.def("environment", [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
  m.def("plain_arrays", plain_arrays);
  py::class_<PlainTensors>(m, "PlainTensors")
      .def(py::init<py::capsule, py::tuple, py::object, py::object, py::object, py::object, py::set>())
      .def("tensors", &PlainTensors::tensors)
      .def("module", &PlainTensors::module);
  m.def("keystream", keystream);
  m.def("clipped_squares", clipped_squares);
  m.def("clipped_scales", clipped_scales);
  m.def("clipped_sums", clipped_sums);
  m.def("narrow_sums", narrow_sums);
  m.attr("NARROW") = kNarrowColumns;
  m.def("cipher_block", cipher_block);
  m.def("lattice_quantise", lattice_quantise);
  m.def("lattice_noise", lattice_noise_integers);
  m.def("rotate", rotate, py::arg().noconvert(), py::arg(), py::arg(), py::arg(), py::arg());

  m.def("crc32c", crc32c, py::arg("data"), py::arg("way") = "fastest");
  m.def("add_bytes", add_bytes<uint32_t>, py::arg().noconvert(), py::arg(), py::arg());
  m.def("add_bytes", add_bytes<uint64_t>, py::arg().noconvert(), py::arg(), py::arg());

  m.def("majority_vote", majority_vote<uint8_t>, py::arg().noconvert(), py::arg(), py::arg().noconvert(),
        py::arg().noconvert(), py::arg(), py::arg());
  m.def("majority_vote", majority_vote<int32_t>, py::arg().noconvert(), py::arg(), py::arg().noconvert(),
        py::arg().noconvert(), py::arg(), py::arg());
  m.def("majority_vote", majority_vote<int64_t>, py::arg().noconvert(), py::arg(), py::arg().noconvert(),
        py::arg().noconvert(), py::arg(), py::arg());

  py::class_<Summary>(m, "Summary")
      .def_readonly("min", &Summary::min)
      .def_readonly("max", &Summary::max)
      .def_readonly("sum", &Summary::sum)
      .def_readonly("sum_squares", &Summary::sum_squares)
      .def_readonly("finite", &Summary::finite);
  m.def("summarize", summarize_spans);
  m.def("order_statistics", select);

  py::class_<Tally>(m, "Tally")
      .def(py::init(
          [](int64_t bytes, const std::string& isa) { return std::make_unique<Tally>(bytes, kernels_named(isa)); }))
      .def_property_readonly("count", tally_count)
      .def_property_readonly("bytes", &Tally::bytes)
      .def("add", tally_add)
      .def("merge", tally_merge)
      .def("planes", tally_planes)
      .def("restore", tally_restore)
      .def("decode_f32", tally_decode<float>)
      .def("decode_f64", tally_decode<double>);
}

}  // namespace
}  // namespace ldpk
