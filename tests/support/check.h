// Expectations for the C++ tests: a failure prints the values and the place and lets the test go on.
#pragma once
#include <cstdio>
#include <string>

#include "base/check.h"

namespace ark::test {

inline int num_failures = 0;

inline void fail(const std::string& what, const char* file, int line) {
  ++num_failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class A, class B>
void expect_equal(const A& actual, const B& expected, const char* text, const char* file, int line) {
  if (!(actual == expected)) fail(cat(text, "\n  expected ", expected, "\n  actual   ", actual), file, line);
}

/// `call` must throw an Error whose message contains `part`.
template <class Error, class Call>
void expect_throw(Call call, const std::string& part, const char* file, int line) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) == std::string::npos)
      fail(cat("expected a message with \"", part, "\", got \"", error.what(), '"'), file, line);
    return;
  } catch (const std::exception& error) {
    return fail(cat("expected another type of error, got \"", error.what(), '"'), file, line);
  }
  fail(cat("expected an error with \"", part, "\", got none"), file, line);
}

inline int result(const char* name) {
  std::printf("%s: %s, %d failures\n", name, num_failures ? "FAILED" : "ok", num_failures);
  return num_failures ? 1 : 0;
}

}  // namespace ark::test

#define EXPECT(condition) \
  if (!(condition)) ark::test::fail("expected " #condition, __FILE__, __LINE__)
#define EXPECT_EQ(actual, expected) ark::test::expect_equal(actual, expected, #actual, __FILE__, __LINE__)
#define EXPECT_THROW(Error, call, part) ark::test::expect_throw<Error>([&] { (void)(call); }, part, __FILE__, __LINE__)
