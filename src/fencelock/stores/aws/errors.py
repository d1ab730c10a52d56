"""Mapping the errors of botocore and aiobotocore to FencelockError.

Promise: a mapped error is definite if the service itself reported that it did nothing, or if no request was sent.
Never: a credential shown; a request's headers or a signature in a message.
"""

from botocore import exceptions

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.aws.url import AwsConnectionInfo
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
        # While a reply is read, the libraries below raise their own.
        is_known = isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _BELOW
        return _unknown(info, message_of(error)) if is_known else None
    message = message_of(error)
    if isinstance(error, _CREDENTIALS):
        return SourceError(
            f"{info.url} was not asked ({message}): give credentials, by a profile in the URL or by the environment"
        )
    if isinstance(error, _DOES_NOT_FIT):
        return SourceError(f"{info.url} was not asked, because a value is missing or does not fit: {message}")
    return unreachable(info.url, message) if _was_never_connected(error) else _unknown(info, message)


def _map_refusal(error: exceptions.ClientError, info: AwsConnectionInfo) -> SourceError:
    code, message = code_of(error), message_of(error)
    if code in _BUSY:
        return SourceUnavailableError(f"{info.url} could not do it now ({code}: {message}): try again")
    if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", _FIRST_SERVER_ERROR) >= _FIRST_SERVER_ERROR:
        return _unknown(info, f"{code}: {message}")
    if code in _NOT_FOUND:
        return SchemaError(
            f"{info.url} has no such table or bucket ({code}: {message}). `fencelock install` creates the tables of "
            f"fencelock's own; create the others yourself, in the same account and region"
        )
    if code in _NOT_PERMITTED:
        remedy = (
            "grant it to this role, as `--print-policy` prints it, and check the credentials and the machine's clock"
        )
        return not_permitted(info.url, f"{code}: {message}", remedy)
    return SourceError(f"{info.url} refused ({code}: {message})")


def _unknown(info: AwsConnectionInfo, message: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"{info.url} broke off ({message}): whether it did what was asked is unknown")


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
    return bool(names & _NOT_CONNECTED) or "CERTIFICATE_VERIFY_FAILED" in str(cause)
