// The exact messages for all errors in configuration files.
#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

constexpr const char* all_collectives =
    "broadcast, reduce, allreduce, reduce_scatter, allgather, allgatherv, gather, gatherv, scatter, scatterv, "
    "alltoall, alltoallv, send, recv, barrier, reduce_scatterv";
constexpr const char* all_platforms = "host, cuda, hip, level_zero, opencl, mixed";
constexpr const char* all_datatypes =
    "int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, "
    "float8_e4m3, float8_e5m2";
constexpr const char* rule_keys = "collective, platform, datatype, op, memory, ranks, nodes, bytes, use";

struct bad_file {
  const char* text;
  std::string expected;  // "message | hint", without the file's name
};

void PrintTo(const bad_file& file, std::ostream* stream) { *stream << file.text; }

class errors : public ::testing::TestWithParam<bad_file> {};

TEST_P(errors, have_the_exact_text) {
  EXPECT_EQ(error_of([&] { read_toml(GetParam().text, "f.toml", "config"); }), "f.toml:" + GetParam().expected);
}

std::string expected(const char* place, const std::string& message, const char* hint = "") {
  return std::string(place) + ": " + message + " | " + hint;
}

INSTANTIATE_TEST_SUITE_P(
    top_level, errors,
    ::testing::Values(
        bad_file{"treshold = 3",
                 expected("1:1",
                          "unknown key \"treshold\"; allowed: default_backend, threshold, timeout_s, "
                          "sycl_backends, platform, plugins, backend, memory, rule, check, "
                          "deterministic",
                          "did you mean \"threshold\"?")},
        bad_file{"threshold = 1.5",
                 expected("1:13", "threshold is a floating-point number, must be an integer or a string")},
        bad_file{"threshold = \"64k\"",
                 expected("1:13",
                          "size \"64k\" is not a number of bytes; allowed: digits and one of the units K, M, G "
                          "(1024, 1024^2, 1024^3)")},
        bad_file{"\n\n  default_backend = 7",
                 expected("3:21", "default_backend is an integer, must be a string")},
        bad_file{
            "default_backend = \"MPI\"",
            expected("1:19",
                     "backend \"MPI\" is not a name; allowed: a lower-case letter, then lower-case letters, "
                     "digits and _")},
        bad_file{"timeout_s = \"5\"", expected("1:13", "timeout_s is a string, must be a number")},
        bad_file{"timeout_s = 0", expected("1:13", "timeout_s \"0\" is not a positive number of seconds")},
        // A double cannot represent this integer.
        bad_file{"timeout_s = 9007199254740993",
                 expected("1:13", "timeout_s \"9007199254740992\" is above 1000000000 seconds (30 years)",
                          "write 1e9 for a practically unlimited timeout")},
        bad_file{"timeout_s = nan",
                 expected("1:13", "timeout_s \"nan\" is not a positive number of seconds")}));

INSTANTIATE_TEST_SUITE_P(
    memory, errors,
    ::testing::Values(
        bad_file{"memory = true", expected("1:10", "memory is a boolean, must be a table", "write [memory]")},
        bad_file{
            "[memory]\nproviders = \"umf\"",
            expected(
                "2:1",
                "unknown key \"providers\"; allowed: provider, pool, pool_max_block_bytes, pool_keep_bytes",
                "did you mean \"provider\"?")},
        bad_file{"[memory]\nprovider = [\"direct\", \"usm\"]",
                 expected("2:23", "unknown memory provider \"usm\"; allowed: umf, direct, sycl",
                          "did you mean \"umf\"?")},
        bad_file{"[memory]\nprovider = \"-direkt\"",
                 expected("2:12", "unknown memory provider \"direkt\"; allowed: umf, direct, sycl",
                          "did you mean \"direct\"?")},
        bad_file{"[memory]\nprovider = [\"umf\", \"umf\"]",
                 expected("2:20", "memory provider \"umf\" is given twice")},
        bad_file{"[memory]\nprovider = [\"umf\", \"-sycl\"]",
                 expected("2:20", "memory providers \"umf\" and \"-sycl\" mix two forms",
                          "list the providers to use in order, or prefix each provider to exclude with -")},
        bad_file{"[memory]\nprovider = []",
                 expected("2:12", "provider is an empty list, must name at least one provider")},
        bad_file{"[memory]\npool = \"yes\"", expected("2:8", "pool is a string, must be a boolean")},
        bad_file{
            "[memory]\npool_keep_bytes = \"1 GB\"",
            expected("2:19",
                     "size \"1 GB\" is not a number of bytes; allowed: digits and one of the units K, M, G "
                     "(1024, 1024^2, 1024^3)")}));

INSTANTIATE_TEST_SUITE_P(
    tables, errors,
    ::testing::Values(
        bad_file{"sycl_backends = 1",
                 expected("1:17", "sycl_backends is an integer, must be a table", "write [sycl_backends]")},
        bad_file{"[sycl_backends]\n4 = \"nvidia\"",
                 expected("2:5", std::string("unknown platform \"nvidia\"; allowed: ") + all_platforms)},
        bad_file{"[sycl_backends]\n4 = 4", expected("2:5", "4 is an integer, must be a string")},
        bad_file{"[sycl_backends]\n\"\" = \"cuda\"",
                 expected("2:1", "empty name or number of a sycl::backend")},
        bad_file{"[platform.cude]\nbackend = \"nccl\"",
                 expected("1:11", std::string("unknown platform \"cude\"; allowed: ") + all_platforms,
                          "did you mean \"cuda\"?")},
        bad_file{"platform = \"cuda\"",
                 expected("1:12", "platform is a string, must be a table", "write [platform.cuda]")},
        bad_file{"[platform]\ncuda = \"nccl\"",
                 expected("2:8", "cuda is a string, must be a table", "write [platform.cuda]")},
        bad_file{"[platform.cuda]\nbackends = \"nccl\"",
                 expected("2:1", "unknown key \"backends\"; allowed: backend, fallback",
                          "did you mean \"backend\"?")},
        bad_file{"[platform.cuda]\nbackend = [\"nccl\"]",
                 expected("2:11", "backend is a list, must be a string")},
        bad_file{
            "[plugins]\nMine = \"x.so\"",
            expected("2:1",
                     "plug-in \"Mine\" is not a name; allowed: a lower-case letter, then lower-case letters, "
                     "digits and _")},
        bad_file{"[plugins]\nmine = true", expected("2:8", "mine is a boolean, must be a string")},
        bad_file{"[plugins]\nmine = \"\"", expected("2:8", "the path of plug-in mine is empty")},
        bad_file{"backend = \"host\"",
                 expected("1:11", "backend is a string, must be a table", "write [backend.NAME]")},
        bad_file{"[backend]\nshm = 1",
                 expected("2:7", "shm is an integer, must be a table", "write [backend.shm]")},
        bad_file{"[backend.shm]\nspin-us = 1",
                 expected("2:1",
                          "option \"spin-us\" is not a name; allowed: a lower-case letter, then lower-case "
                          "letters, digits and _")},
        bad_file{"[backend.shm]\nspin_us = [1]",
                 expected("2:11", "spin_us is a list, must be a string, a number or a boolean")},
        bad_file{"[backend.shm]\nspin_us = 2026-11-30",
                 expected("2:11", "spin_us is a date, must be a string, a number or a boolean")}));

INSTANTIATE_TEST_SUITE_P(
    rules, errors,
    ::testing::Values(
        bad_file{"[rule]\nuse = \"mpi\"", expected("1:1", "rule is a table, must be a list of tables",
                                                   "write [[rule]] with two brackets")},
        bad_file{"rule = [3]", expected("1:9", "rule is an integer, must be a table", "write [[rule]]")},
        bad_file{"[[rule]]\nbytes = \"0..1K\"",
                 expected("1:1", "the rule has no use: it must name a backend",
                          "add use = \"BACKEND\" or use = \"BACKEND:ALGORITHM\"")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ndtype = \"int8\"",
                 expected("3:1", std::string("unknown key \"dtype\"; allowed: ") + rule_keys,
                          "did you mean \"datatype\"?")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ncollective = \"alreduce\"",
                 expected("3:14", std::string("unknown collective \"alreduce\"; allowed: ") + all_collectives,
                          "did you mean \"allreduce\"?")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ncollective = [\"reduce\",\n  \"scater\"]",
                 expected("4:3", std::string("unknown collective \"scater\"; allowed: ") + all_collectives,
                          "did you mean \"scatter\"?")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ncollective = []",
                 expected("3:14", "collective is an empty list, which matches nothing",
                          "remove collective to match everything")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ncollective = 3",
                 expected("3:14", "collective is an integer, must be a string or a list of strings")},
        bad_file{"[[rule]]\nuse = \"mpi\"\ncollective = [3]",
                 expected("3:15", "collective is an integer, must be a string")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nplatform = \"gpu\"",
                 expected("3:12", std::string("unknown platform \"gpu\"; allowed: ") + all_platforms)},
        bad_file{"[[rule]]\nuse = \"mpi\"\ndatatype = \"flota32\"",
                 expected("3:12", std::string("unknown datatype \"flota32\"; allowed: ") + all_datatypes,
                          "did you mean \"float32\"?")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nmemory = \"symetric\"",
                 expected("3:10", "unknown memory \"symetric\"; allowed: any, symmetric",
                          "did you mean \"symmetric\"?")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nmemory = [\"any\"]",
                 expected("3:10", "memory is a list, must be a string")},
        bad_file{"[[rule]]\nuse = 1", expected("2:7", "use is an integer, must be a string")},
        bad_file{
            "[[rule]]\nuse = \"shm:\"",
            expected("2:7",
                     "algorithm \"\" is not a name; allowed: a lower-case letter, then lower-case letters, "
                     "digits and _")},
        bad_file{"[[rule]]\nuse = \":packet\"",
                 expected("2:7",
                          "backend \"\" is not a name; allowed: a lower-case letter, then lower-case letters, "
                          "digits and _")}));

INSTANTIATE_TEST_SUITE_P(
    ranges, errors,
    ::testing::Values(
        bad_file{"[[rule]]\nuse = \"mpi\"\nranks = 0",
                 expected("3:9", "ranks \"0\" is not a whole number from 1 to 2147483646")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nranks = 2.5",
                 expected("3:9", "ranks is a floating-point number, must be an integer or a string")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nranks = \"8..2\"",
                 expected("3:9", "ranks \"8..2\" is inverted: 8 is above 2")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nnodes = \"2..x\"",
                 expected("3:9", "nodes \"x\" is not a whole number from 1 to 2147483646")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nnodes = 99999999999",
                 expected("3:9", "nodes \"99999999999\" is not a whole number from 1 to 2147483646")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nnodes = \"..2147483647\"",
                 expected("3:9", "nodes \"2147483647\" is not a whole number from 1 to 2147483646")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nbytes = 4096",
                 expected("3:9", "bytes is an integer, must be a string")},
        bad_file{
            "[[rule]]\nuse = \"mpi\"\nbytes = \"64K\"",
            expected("3:9",
                     "bytes \"64K\" is not a range; allowed: \"FIRST..END\", \"FIRST..\" or \"..END\", where "
                     "END is excluded",
                     "write \"64K..\" for that size and above, or \"0..64K\" for below it")},
        bad_file{
            "[[rule]]\nuse = \"mpi\"\nbytes = \"1M..64K\"",
            expected("3:9",
                     "bytes \"1M..64K\" is an empty range: the end is excluded and must be above the start")},
        bad_file{
            "[[rule]]\nuse = \"mpi\"\nbytes = \"64K..64K\"",
            expected("3:9",
                     "bytes \"64K..64K\" is an empty range: the end is excluded and must be above the start")},
        bad_file{"[[rule]]\nuse = \"mpi\"\nbytes = \"0..9223372036854775809\"",
                 expected("3:9", "size \"9223372036854775809\" is above 2^63 bytes")}));

// For text that is not TOML, the wording comes from toml++. Isthmus adds the location and the status.
TEST(syntax, errors_have_a_location) {
  const std::string message = error_of([] { read_toml("a = 1\nthreshold = = 3", "f.toml", "config"); });
  EXPECT_TRUE(message.starts_with("f.toml:2:13: not TOML: ")) << message;
  const std::string twice = error_of([] { read_toml("threshold = 1\nthreshold = 2", "f.toml", "config"); });
  EXPECT_TRUE(twice.starts_with("f.toml:2:")) << twice;
  const std::string header = error_of([] { read_toml("[=", "f.toml", "config"); });
  EXPECT_TRUE(header.starts_with("f.toml:1:2: not TOML: ")) << header;
  const std::string bytes = error_of([] { read_toml("threshold = \"\xff\xfe\"", "f.toml", "config"); });
  EXPECT_TRUE(bytes.starts_with("f.toml:1:")) << bytes;
}

}  // namespace
}  // namespace isthmus::selection
