// A call of isthmus_allreduce_rmsnorm on all ranks: random inputs, poisoned outputs, and a reference in wide arithmetic that
// shares no code with src/.
#pragma once

#include <isthmus/allreduce_rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rmsnorm_test {

using bytes = std::vector<std::byte>;

struct norm_shape {
  int size = 2;
  std::uint64_t tokens = 1, hidden = 1;
  isthmus_datatype datatype = ISTHMUS_BFLOAT16, output = ISTHMUS_BFLOAT16;
  bool has_row_scales = false;
  std::uint64_t seed = 1;
  bool round_before_weight = false;
};
std::string to_string(const norm_shape& shape);
// Every datatype, with its own type and with both kinds of float8 as output, with both values of round_before_weight.
std::vector<norm_shape> kinds_of(norm_shape shape);

// The outputs of one rank.
struct norm_outputs {
  bytes residual, normalized;
  std::vector<float> scales;
  bool operator==(const norm_outputs&) const = default;
};

class norm_case {
 public:
  explicit norm_case(const norm_shape& shape);

  const norm_shape& shape() const { return m_shape; }
  const bytes& contribution(int rank) const { return m_contributions[static_cast<std::size_t>(rank)]; }
  const bytes& residual() const { return m_residual; }
  const bytes& weight() const { return m_weight; }
  const float& scale() const { return m_scale; }
  static constexpr double eps = 1e-5;

  norm_outputs poisoned_outputs() const;
  // The arguments of a call whose buffers are on the host.
  isthmus_allreduce_rmsnorm_arguments arguments(int rank, norm_outputs& outputs) const;
  // Compares the residual with its exact value, and the normalized rows with a bound. "": no error.
  std::string find_error(const norm_outputs& outputs) const;

  // The case that consists of some of the rows, and the outputs of these rows.
  norm_case select(const std::vector<std::uint64_t>& rows) const;
  norm_outputs select(const norm_outputs& outputs, const std::vector<std::uint64_t>& rows) const;

 private:
  norm_shape m_shape;
  std::vector<bytes> m_contributions;
  bytes m_residual, m_weight;
  float m_scale = 0;
};

// The first and the last row, and at most `most` others.
std::vector<std::uint64_t> sample_rows(std::uint64_t tokens, std::uint64_t most);

// The outputs of all ranks on the platform `host`. Errors: throws std::runtime_error.
std::vector<norm_outputs> run_on_host(const norm_case& test);

}  // namespace rmsnorm_test
