// As much of an old UCX as the plug-in asks before it refuses it.
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = 1;
  *minor = 9;
  *release = 2;
}
const char* ucp_get_version_string(void) { return "1.9.2"; }
