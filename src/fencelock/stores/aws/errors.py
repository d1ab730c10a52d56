"""Mapping the errors of botocore and aiobotocore to FencelockError.

Promise: a mapped error is definite if the service itself reported that it did nothing, or if no request was sent.
Never: a credential shown; a request's headers or a signature in a message.
"""

import re
from traceback import walk_tb

from botocore import exceptions

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.aws.url import DYNAMODB, S3, AwsConnectionInfo
from fencelock.stores.errors import not_permitted, unreachable

_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
)
_DOES_NOT_FIT = (exceptions.ParamValidationError, exceptions.NoRegionError, exceptions.EndpointProviderError)
"""Errors that botocore raises before it sends anything."""
_NOT_CONNECTED = {"ClientConnectorError", "NewConnectionError", "gaierror"}
"""What aiohttp, urllib3 and the system raise if a connection could not be opened."""
_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
_FROM_TLS = re.compile(rf"{_NOT_TRUSTED}|ALERT|UNSUPPORTED_PROTOCOL")
"""Reasons of OpenSSL's that only a server of TLS gives."""
_BELOW = {"aiohttp", "botocore", "http", "urllib3"}
_BUSY = {
    "LimitExceededException",
    "OperationAborted",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestTimeout",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionConflictException",
}
"""Codes by which a service says that it did nothing now."""
_NOT_PERMITTED = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_NOT_FOUND = {"NoSuchBucket", "ResourceNotFoundException", "TableNotFoundException"}
_CREATE_IT = {
    DYNAMODB: (
        ". `fencelock install` creates the tables of fencelock's own; create the others yourself, in the same account "
        "and region"
    ),
    S3: ": create it, or correct the URL",
}
_PERMIT_IT = {
    DYNAMODB: (
        "grant it to this role, as `--print-policy` prints it, and check the credentials and the machine's clock"
    ),
    S3: (
        "check that the bucket {target!r} exists, since some servers answer so where it does not, and check the "
        "credentials and the machine's clock. The role needs s3:GetObject, s3:PutObject and s3:ListBucket there, and a "
        "bucket policy from `--print-policy` refuses the writes of roles that it does not name"
    ),
}
_IN_DOUBT = ": whether it did what was asked is unknown"
_MAX_MESSAGE_CHARACTERS = 512
_FIRST_SERVER_ERROR = 500


def code_of(error: exceptions.ClientError) -> str:
    """Return the code that the service gave to a refusal: for a reply without a body, the HTTP status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
    """Return an error's message in one short line."""
    text = error.response.get("Error", {}).get("Message") if isinstance(error, exceptions.ClientError) else str(error)
    return " ".join(str(text or type(error).__name__).split())[:_MAX_MESSAGE_CHARACTERS]


def map_setup_error(error: BaseException, info: AwsConnectionInfo) -> SourceError | None:
    """Map an exception from making a client, before anything was sent; None if no client of AWS raised it."""
    if not isinstance(error, (exceptions.BotoCoreError, ValueError)):
        return None
    return SourceError(
        f"{info.url} was not asked, because the configuration of AWS does not fit ({message_of(error)}): correct the "
        f"URL, or the profile"
    )


def map_error(error: BaseException, info: AwsConnectionInfo) -> SourceError | None:
    """Map an exception of a request to a SourceError; None if no client of AWS raised it."""
    if isinstance(error, exceptions.ClientError):
        return _map_refusal(error, info)
    if isinstance(error, TimeoutError):
        return _unknown(info, "it did not answer in time")
    if not isinstance(error, exceptions.BotoCoreError):
        # While a reply is read, the libraries below raise their own, and whatever they stumble over.
        is_known = isinstance(error, OSError) or _is_from_below(error)
        return _unknown(info, message_of(error)) if is_known else None
    message = message_of(error)
    if isinstance(error, _CREDENTIALS):
        return SourceError(
            f"{info.url} was not asked ({message}): give credentials, by a profile in the URL or by the environment"
        )
    if isinstance(error, _DOES_NOT_FIT):
        return SourceError(f"{info.url} was not asked, because a value is missing or does not fit: {message}")
    return _map_broken_connection(error, info, message)


def doubt_of(error: OutcomeUnknownError) -> str:
    """Return why an outcome is unknown, without saying that it is: the caller knows what follows from it."""
    return str(error).removesuffix(_IN_DOUBT)


def has_timed_out(error: OutcomeUnknownError) -> bool:
    """Return whether the server did not answer in time, which is no connection that had ended."""
    return isinstance(error.__cause__, (TimeoutError, exceptions.ReadTimeoutError))


def only_reads(error: OutcomeUnknownError) -> SourceUnavailableError:
    """Return the error for a request without an answer that only reads."""
    return SourceUnavailableError(f"{doubt_of(error)}; the request only reads, so nothing was done. Try again")


def _map_refusal(error: exceptions.ClientError, info: AwsConnectionInfo) -> SourceError:
    code, message = code_of(error), message_of(error)
    # Before the status, which is 503 for some of these: their codes say that nothing was done.
    if code in _BUSY:
        return SourceUnavailableError(f"{info.url} could not do it now ({code}: {message}): try again")
    if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", _FIRST_SERVER_ERROR) >= _FIRST_SERVER_ERROR:
        return _unknown(info, f"{code}: {message}")
    if code in _NOT_FOUND:
        missing = f"bucket {info.target!r}" if info.service == S3 else "such table"
        return SchemaError(f"{info.url} has no {missing} ({code}: {message}){_CREATE_IT[info.service]}")
    if code in _NOT_PERMITTED:
        remedy = _PERMIT_IT[info.service].format(target=info.target)
        return not_permitted(info.url, f"{code}: {message}", remedy)
    return SourceError(f"{info.url} refused ({code}: {message})")


def _unknown(info: AwsConnectionInfo, message: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"{info.url} broke off ({message}){_IN_DOUBT}")


def _map_broken_connection(error: exceptions.BotoCoreError, info: AwsConnectionInfo, message: str) -> SourceError:
    if _is_of_handshake(error):
        return unreachable(info.url, message if _FROM_TLS.search(message) else _no_tls(info, message))
    return unreachable(info.url, message) if _was_never_connected(error) else _unknown(info, message)


def _is_from_below(error: BaseException) -> bool:
    """Return whether a client library defines the error, or is where it was raised."""
    *_, last = [type(error).__module__, *(frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__))]
    return bool({type(error).__module__.partition(".")[0], last.partition(".")[0]} & _BELOW)


def _was_never_connected(error: BaseException) -> bool:
    """Return whether an error says that there was no connection to send a request on.

    aiobotocore raises EndpointConnectionError for a connection that broke in the middle of a request, too: only what
    it was made of tells them apart.
    """
    if isinstance(error, (exceptions.ConnectTimeoutError, exceptions.ProxyConnectionError)):
        return True
    if not isinstance(error, (exceptions.EndpointConnectionError, exceptions.SSLError)):
        return False
    cause = error.kwargs.get("error")
    # By their names: the other API's client library need not be installed.
    names = {kind.__name__ for kind in type(cause).__mro__}
    return bool(names & _NOT_CONNECTED) or _NOT_TRUSTED in str(cause)


def _is_of_handshake(error: exceptions.BotoCoreError) -> bool:
    """Return whether a connection failed in its TLS handshake, and so before a request was sent.

    Only what was raised for this request is looked at, and never `__context__`: the caller may be handling the error of
    an earlier one.
    """
    cause = error.kwargs.get("error")
    while isinstance(cause, BaseException):
        if any(frame.f_code.co_name == "do_handshake" for frame, _ in walk_tb(cause.__traceback__)):
            return True
        # urllib3 has what it was made of among the arguments.
        cause = cause.__cause__ or next((one for one in cause.args if isinstance(one, BaseException)), None)
    return False


def _no_tls(info: AwsConnectionInfo, message: str) -> str:
    """Return that a TLS handshake failed, and what to do."""
    speaks = "does not speak TLS" if "WRONG_VERSION_NUMBER" in message else "may not speak TLS"
    remedy = "check the proxy"
    if info.endpoint is not None:
        remedy = f"write endpoint={info.endpoint.replace('https:', 'http:', 1)}, or check the port"
    return f"the TLS handshake failed ({message}). The server {speaks}: {remedy}. Nothing was sent"
