// The part of an old UCX that the backend calls before it refuses the library.
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = 1;
  *minor = 9;
  *release = 2;
}
const char* ucp_get_version_string(void) { return "1.9.2"; }
