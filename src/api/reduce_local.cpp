#include <isthmus/isthmus.h>

#include "base/error.hpp"
#include "kernels/kernels.hpp"

namespace {

void check_arguments(const void* in_buf, const void* inout_buf, std::uint64_t count, unsigned datatype_number,
                     unsigned op_number) {
  using isthmus::make_error;
  if (datatype_number >= ISTHMUS_DATATYPE_COUNT)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("datatype is {}; it must be one of the {} of THE TABLE", datatype_number,
                                 static_cast<int>(ISTHMUS_DATATYPE_COUNT)),
                     "use an isthmus_datatype of isthmus/types.h");
  if (op_number >= ISTHMUS_REDUCTION_OP_COUNT)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("op is {}; it must be one of the {} of THE TABLE", op_number,
                                 static_cast<int>(ISTHMUS_REDUCTION_OP_COUNT)),
                     "use an isthmus_reduction_op of isthmus/types.h");
  if (count == 0) return;
  if (in_buf == nullptr || inout_buf == nullptr)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("{} is NULL; it must hold {} elements", in_buf == nullptr ? "in_buf" : "inout_buf", count),
        "only count 0 allows NULL");
}

}  // namespace

// C callers can pass any number as an enumerator; looking at it is the point of the check.
isthmus_status isthmus_reduce_local(const void* in_buf, void* inout_buf, uint64_t count,
                                    isthmus_datatype datatype, isthmus_reduction_op op) {
  const auto datatype_number = static_cast<unsigned>(datatype);
  const auto op_number = static_cast<unsigned>(op);
  return isthmus::guard([&] {
    check_arguments(in_buf, inout_buf, count, datatype_number, op_number);
    const unsigned kernel_op = op_number == ISTHMUS_AVG ? unsigned{ISTHMUS_SUM} : op_number;  // the caller divides
    const void* const sources[2] = {in_buf, inout_buf};
    isthmus::cpu::kernels().reduce[datatype_number][kernel_op](inout_buf, sources, 2, count);
  });
}
