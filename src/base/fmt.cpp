// The implementation of fmt, compiled once from its headers. Debian has no static library of fmt, and the shared one
// allocates strings with the program's operator new, which our static C++ runtime then frees. format-inl.h contains
// the functions, and the templates below are those that src/format.cc of fmt instantiates. cmake/dependencies.cmake
// checks that nothing is missing with the installed version of fmt.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template locale_ref::locale_ref(const std::locale&);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
#if FMT_VERSION < 110000  // later a plain function
template void vformat_to(buffer<char>&, string_view, basic_format_args<buffer_context<char>>, locale_ref);
#endif
}  // namespace detail
FMT_END_NAMESPACE
