// Calls that must not compile. CASE selects one. Case 0 must compile, to verify that the other cases fail for
// their own reason.
#include <isthmus/isthmus.h>

#include <cstdint>

isthmus_status misuse(const float* input, float* output, isthmus_communicator communicator,
                      isthmus_stream stream) {
#if CASE == 0
  return isthmus_allreduce(input, output, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator, stream);
#elif CASE == 1  // a number instead of a datatype
  return isthmus_allreduce(input, output, 4, 10, ISTHMUS_SUM, communicator, stream);
#elif CASE == 2  // datatype and operation in the wrong order
  return isthmus_allreduce(input, output, 4, ISTHMUS_SUM, ISTHMUS_FLOAT32, communicator, stream);
#elif CASE == 3  // a const receive buffer
  const float* constant = output;
  return isthmus_allreduce(input, constant, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator, stream);
#elif CASE == 4  // stream and communicator in the wrong order
  return isthmus_allreduce(input, output, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, stream, communicator);
#elif CASE == 5  // missing root
  return isthmus_reduce(input, output, 4, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicator, stream);
#elif CASE == 6  // counts of a type other than uint64_t
  const int counts[1] = {4}, displs[1] = {0};
  return isthmus_allgatherv(input, 4, output, counts, displs, ISTHMUS_FLOAT32, communicator, stream);
#endif
}
