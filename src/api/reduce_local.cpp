// C entry point of isthmus_reduce_local.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include "base/error.hpp"
#include "kernels/kernels.hpp"

namespace {

void check_arguments(const void* in_buf, const void* inout_buf, std::uint64_t count, unsigned datatype_number,
                     unsigned op_number) {
  using isthmus::make_error;
  if (datatype_number >= ISTHMUS_DATATYPE_COUNT)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("reduce_local: datatype = {} is out of range: must be in [0, {})",
                                 datatype_number, static_cast<int>(ISTHMUS_DATATYPE_COUNT)),
                     "use an isthmus_datatype value of isthmus/types.h");
  if (op_number >= ISTHMUS_REDUCTION_OP_COUNT)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("reduce_local: op = {} is out of range: must be in [0, {})", op_number,
                                 static_cast<int>(ISTHMUS_REDUCTION_OP_COUNT)),
                     "use an isthmus_reduction_op value of isthmus/types.h");
  if (count == 0) return;
  if (in_buf == nullptr || inout_buf == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("reduce_local: {} is NULL, but count = {}",
                                 in_buf == nullptr ? "in_buf" : "inout_buf", count),
                     "pass a buffer of count elements; NULL is only allowed for count 0");
}

}  // namespace

// C callers can pass any number as an enumerator, so the check uses the unsigned number.
isthmus_status isthmus_reduce_local(const void* in_buf, void* inout_buf, uint64_t count,
                                    isthmus_datatype datatype, isthmus_reduction_op op) {
  const auto datatype_number = static_cast<unsigned>(datatype);
  const auto op_number = static_cast<unsigned>(op);
  return isthmus::guard([&] {
    check_arguments(in_buf, inout_buf, count, datatype_number, op_number);
    const unsigned kernel_op =
        op_number == ISTHMUS_AVG ? unsigned{ISTHMUS_SUM} : op_number;  // the caller divides
    const void* const sources[2] = {in_buf, inout_buf};
    isthmus::cpu::kernels().reduce[datatype_number][kernel_op](inout_buf, sources, 2, count);
  });
}
